// The service's HTTP interface: same origin only, one error shape, the token in this tab only.

const TOKEN = "evercount-token";
let memory = null; // used where the browser forbids storage
let anonymous = false;

/** Never send a token from this page: for charts that other sites embed. */
export function stayAnonymous() {
  anonymous = true;
}

/** The read token of this tab, or null. */
export function token() {
  if (anonymous) return null;
  try {
    return sessionStorage.getItem(TOKEN);
  } catch {
    return memory;
  }
}

/** Keep a token for this tab, or forget it (null). */
export function setToken(value) {
  memory = value;
  try {
    if (value) sessionStorage.setItem(TOKEN, value);
    else sessionStorage.removeItem(TOKEN);
  } catch {
    // the variable above is enough
  }
}

/** What the service answered when it refused: `status` 0 means that it could not be reached. */
export class ServiceError extends Error {
  constructor(status, message, remedy = "") {
    super(message);
    this.status = status;
    this.remedy = remedy;
  }

  get denied() {
    return this.status === 401 || this.status === 403;
  }
}

async function refusal(response) {
  let message = `the service answered ${response.status}`;
  let remedy = "";
  try {
    const { error } = await response.json();
    message = error?.message ?? message;
    remedy = error?.remedy ?? "";
  } catch {
    // not the service's own error, for example a proxy's
  }
  return new ServiceError(response.status, message, remedy);
}

async function open(path, headers, signal) {
  const key = token();
  if (key) headers.Authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(new URL(path, document.baseURI), { headers, signal, cache: "no-store", credentials: "same-origin" });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ServiceError(0, "the service cannot be reached", "The page tries again by itself.");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function get(path, signal) {
  const response = await open(path, { Accept: "application/json" }, signal);
  return response.json();
}

const at = (name) => `v1/streams/${encodeURIComponent(name)}`;

/** {streams, ledger}: the facts of all streams that this tab may see, and what they spend together. */
export const listStreams = (signal) => get("v1/streams", signal);

export const streamFacts = (name, signal) => get(at(name), signal);

/** Releases after a tick, oldest first, at most `limit` of them. */
export async function releasesAfter(name, after, limit, signal) {
  return (await get(`${at(name)}/releases?after=${after}&limit=${limit}`, signal)).releases;
}

function viewPath(name, parameters, suffix = "") {
  return `${at(name)}/releases${suffix}?${new URLSearchParams(parameters)}`;
}

/** The newest spans of a view: {labels, flat, releases: [{tick, first, start, values, std, low, high}]}. */
export const viewOf = (name, parameters, signal) => get(viewPath(name, parameters), signal);

/** A view as a file: {blob, file}, `file` its name. */
export async function fileOf(name, parameters, form) {
  const response = await open(viewPath(name, parameters, `.${form}`), {});
  return { blob: await response.blob(), file: `${name}.${parameters.view}.${form}` };
}

/** Errors of all mechanisms; with a `view` among the [name, value] pairs, those of each view. */
export const planFor = (parameters, signal) => get(`v1/plan?${new URLSearchParams(parameters)}`, signal);

/** The open body of the live feed, which starts after `lastTick`. */
export async function openLive(name, lastTick, signal) {
  const headers = { Accept: "text/event-stream", "Last-Event-ID": String(lastTick) };
  return (await open(`${at(name)}/live`, headers, signal)).body;
}
