// The live feed of one stream: server-sent events read by fetch (so that a token can be sent), resumed after a break.

import { openLive } from "./api.js";

const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 15000;
const SILENCE = 60000;

/** Split a text/event-stream body into {event, id, data}; comments only prove that the line is alive. */
async function* messages(body, heard) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  let event = { event: "message", id: null, data: [] };
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      heard();
      buffer += value;
      const lines = buffer.split(/\r?\n/);
      buffer = lines.pop();
      for (const line of lines) {
        if (line === "") {
          if (event.data.length) yield { ...event, data: event.data.join("\n") };
          event = { event: "message", id: null, data: [] };
          continue;
        }
        const colon = line.indexOf(":");
        if (colon === 0) continue;
        const field = colon < 0 ? line : line.slice(0, colon);
        const content = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
        if (field === "data") event.data.push(content);
        else if (field === "event" || field === "id") event[field] = content;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/**
 * Follow a stream until `stop()`.
 *
 * `position()` is the last tick the page has: every (re)connection resumes after it, so no tick is missed or shown
 * twice. `onState(state, detail)` gets connecting, live, waiting (seconds until the next
 * try) or refused (with the error instead).
 */
export function follow(name, { position, onRelease, onEnd, onState, silence = SILENCE }) {
  let stopped = false;
  let current = null;
  let wake = () => {};

  const pause = (milliseconds) =>
    new Promise((resolve) => {
      const timer = setTimeout(resolve, milliseconds);
      wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });

  async function once() {
    current = new AbortController();
    let timer;
    const heard = () => {
      clearTimeout(timer);
      timer = setTimeout(() => current.abort(), silence);
    };
    try {
      heard();
      const body = await openLive(name, position(), current.signal);
      onState("live");
      for await (const message of messages(body, heard)) {
        if (stopped) return true;
        if (message.event === "release") onRelease(JSON.parse(message.data));
        if (message.event === "end") {
          onEnd();
          return true;
        }
      }
      return false;
    } finally {
      clearTimeout(timer);
      current.abort();
    }
  }

  async function run() {
    let failures = 0;
    onState("connecting");
    while (!stopped) {
      const before = position();
      const begun = performance.now();
      try {
        if (await once()) return;
      } catch (error) {
        if (stopped) return;
        if (error.status >= 400 && error.status < 500 && error.status !== 408 && error.status !== 429) {
          onState("refused", error);
          return;
        }
      }
      if (stopped) return;
      // A connection that brought something, or held for a while, was a good one: start the pauses afresh.
      failures = position() > before || performance.now() - begun > LONGEST_PAUSE ? 1 : failures + 1;
      const wait = Math.min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (failures - 1)) * (0.75 + Math.random() / 2);
      onState("waiting", Math.ceil(wait / 1000));
      await pause(wait);
      if (!stopped) onState("connecting");
    }
  }

  const hurry = () => wake();
  const onVisible = () => document.visibilityState === "visible" && wake();
  addEventListener("online", hurry);
  document.addEventListener("visibilitychange", onVisible);
  run();
  return {
    stop() {
      stopped = true;
      removeEventListener("online", hurry);
      document.removeEventListener("visibilitychange", onVisible);
      current?.abort();
      wake();
    },
  };
}
