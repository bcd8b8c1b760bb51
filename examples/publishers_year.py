"""A publisher's year: one file a day, and all that goes wrong with files, through the real command.

    python examples/publishers_year.py [folder] [--days 365] [--start 2026-03-01]

365 daily files of synthetic reports; three come late, one never, one is corrected. A region is
added in May, and the stream is renewed in January. Every tenth day the command is killed (SIGKILL)
at some moment and started again, as a scheduler does. At the end every published interval is
compared with what it is stated to be about: the rows that were there when the day was published,
and late rows on the day that they came (`--late next`). No file is late over the renewal: rows of a
stream that has ended are not counted by the one that goes on for it.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np

REGIONS, NEW, MAY = ("north", "south", "west"), "islands", date(2026, 5, 1)
ALL = (*REGIONS, NEW)
CORRECTED_AFTER = 3
SEED = 7


class Year:
    """The folder of a publisher, and the truth that only this script knows."""

    def __init__(self, folder: Path, start: date, days: int) -> None:
        self.folder, self.start, self.days = folder, start, days
        self.random = np.random.default_rng(SEED)
        one = max(days // 12, 1)
        self.late = {2 * one: 1, 5 * one: 2, 8 * one: 4}  # day: how many days its file comes late
        self.missing, self.corrected = 7 * one, 4 * one
        january = (date(start.year + 1, 1, 1) - start).days
        self.horizon = january if january < days else 3 * days // 4
        self.counted = np.zeros((days, len(ALL)), np.int64)
        self.takes, self.kills = 3.0, 0
        (folder / "inbox").mkdir(parents=True)
        (folder / "regions.txt").write_text("\n".join(REGIONS) + "\n", encoding="utf-8")
        (folder / "new.txt").write_text(f"{NEW}\n", encoding="utf-8")

    def write(self, name: str, day: int, counts: np.ndarray) -> None:
        """A file of one row for each report of a day."""
        noon = datetime.combine(
            self.start + timedelta(days=day), datetime.min.time(), UTC
        ) + timedelta(hours=12)
        with (self.folder / "inbox" / f"{name}.csv").open("w", encoding="utf-8") as file:
            file.write("reported,region\n")
            for region, count in zip(ALL, counts, strict=True):
                file.writelines(f"{noon.isoformat()},{region}\n" for _ in range(count))

    def deliver(self, today: int) -> None:
        """What arrives before the day `today` is published; rows of days before count with it."""
        due = [
            day
            for day in range(today + 1)
            if day + self.late.get(day, 0) == today and day != self.missing
        ]
        for day in due:
            here = self.start + timedelta(days=day)
            counts = self.random.poisson([300, 120, 40, 15 if here >= MAY else 0])
            self.write(here.isoformat(), day, counts)
            self.counted[today] += counts
        if today == self.corrected + CORRECTED_AFTER:
            counts = np.asarray([30, 0, 5, 0])
            self.write(
                f"{self.start + timedelta(days=self.corrected)}-more", self.corrected, counts
            )
            self.counted[today] += counts

    def publish(self, today: int) -> dict[str, str]:
        """The scheduler's call half a day after the end of a day; every tenth one is killed, and
        made again."""
        now = datetime.combine(
            self.start + timedelta(days=today + 1), datetime.min.time(), UTC
        ) + timedelta(hours=12)
        files = sorted((self.folder / "inbox").iterdir())[-21:]
        command = [
            sys.executable,
            "-m",
            "evercount",
            "release",
            *map(str, files),
            "--time",
            "reported",
        ]
        command += [
            "--every",
            "1d",
            "--zone",
            "UTC",
            "--start",
            str(self.start),
            "--horizon",
            str(self.horizon),
        ]
        command += [
            "--key",
            "region",
            "--keys",
            str(self.folder / "regions.txt"),
            "--epsilon",
            "1",
            "--wait",
            "12h",
        ]
        command += [
            "--late",
            "next",
            "--view",
            "per-day",
            "--view",
            "per-week",
            "--renew",
            "--now",
            now.isoformat(),
        ]
        command += [
            "--out",
            str(self.folder / "days.csv"),
            "--ledger",
            str(self.folder / "spent.ledger"),
        ]
        command += ["--total", "1,0"] if today == 0 else []
        if self.start + timedelta(days=today) >= MAY:
            command += ["--add-keys", str(self.folder / "new.txt")]
        if today == self.missing:
            command += ["--note", f"{today + 1},{today + 1},no file came"]
        if today % 10 == 9:
            with subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            ) as process:
                try:
                    process.wait(self.random.uniform(0, self.takes))
                except subprocess.TimeoutExpired:
                    process.kill()
                    self.kills += 1
        began = time.monotonic()
        done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{now}: {done.stderr}")
        self.takes = time.monotonic() - began
        return dict(json.loads(done.stdout))

    def compare(self, view: str) -> None:
        """How many intervals of a view hold the number that they are about, and how far off the
        numbers are."""
        errors, held = [], []
        for name, begin in ((f"days.1{view}.csv", 0), (f"days{view}.csv", self.horizon)):
            with (self.folder / name).open(encoding="utf-8") as file:
                for row in csv.DictReader(file):
                    first = (date.fromisoformat(row["start"][:10]) - self.start).days
                    truth = self.counted[
                        first : begin + int(row["tick"]), ALL.index(row["cell"])
                    ].sum()
                    errors.append(float(row["value"]) - truth)
                    held.append(float(row["low"]) <= truth <= float(row["high"]))
        rms = float(np.sqrt(np.mean(np.square(errors))))
        print(
            f"{view[1:] or 'per-day'}: {np.mean(held):.1%} of {len(held):,} intervals hold; "
            f"error {rms:.2f} (root mean square), at most {np.abs(errors).max():.1f}"
        )


def main() -> None:
    """Play the days, then look back."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", default="out/year", type=Path)
    parser.add_argument("--days", default=365, type=int)
    parser.add_argument("--start", default=date(2026, 3, 1), type=date.fromisoformat)
    asked = parser.parse_args()
    year = Year(asked.folder, asked.start, asked.days)
    for today in range(asked.days):
        year.deliver(today)
        facts = year.publish(today)
    print(f"{asked.days} days, {year.kills} kills; renewed after {year.horizon} days")
    print(facts["ledger"])
    year.compare("")
    year.compare(".per-week")


if __name__ == "__main__":
    main()
