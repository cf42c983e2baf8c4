"""Runs a published program as it is: its text, with the one line that assigns API replaced, and its free variables given.

    harness.py PROGRAM < settings.json     runs it and says on standard output, one JSON object a line, what it did
    harness.py --show PROGRAM URL          prints the text that would be run
"""
import json
import os
import re
import sys
import time

import requests


def text_of(path, api):
    with open(path, encoding="utf-8", newline="") as f:
        return re.sub(r'(?m)^API = ".*"$', lambda _: f"API = {json.dumps(api)}", f.read())


def say(**what):
    print(json.dumps(what), flush=True)


class Watched:
    """The requests module, telling of each extend's answer."""

    def __getattr__(self, name):
        return getattr(requests, name)

    def post(self, url, **kw):
        answer = requests.post(url, **kw)
        if url.endswith("/extend"):
            body = answer.json()
            say(extend=answer.status_code, clamped=body.get("clamped", False), type=body.get("error", {}).get("type"))
        return answer


class Ended:
    """True once the sandbox has ended."""

    def __init__(self, url, headers):
        self.url, self.headers = url, headers

    def __bool__(self):
        return requests.get(self.url, headers=self.headers).json()["status"] in ("deleted", "failed")


class Clock:
    """The time module with shorter sleeps."""

    def __init__(self, sleep_max):
        self.sleep_max = sleep_max

    def __getattr__(self, name):
        return getattr(time, name)

    def sleep(self, seconds):
        time.sleep(min(seconds, self.sleep_max))


def variables(settings):
    """The free variables of a program: those that are given, and for a long job what the settings describe."""
    given = dict(settings.get("given", {}))
    if "sid" not in given:
        return given
    api, sid = settings["api"], given["sid"]
    headers = {"Authorization": f"Bearer {os.environ['AAS_API_KEY']}"}
    seen = []

    def made_progress(tail):
        fresh = bool(tail) and tail not in seen
        seen.append(tail)
        say(tail=tail, progress=fresh)
        return fresh

    def run(command, **kw):
        return requests.post(f"{api}/sandboxes/{sid}/exec", headers=headers, json={"command": command, **kw}).json()

    given.update(API=api, H=headers, requests=Watched(), run=run, made_progress=made_progress,
                 finished=Ended(f"{api}/sandboxes/{sid}", headers))
    given["time"] = Clock(settings["sleep_max"]) if settings.get("sleep_max") else time
    return given


def main():
    if sys.argv[1] == "--show":
        sys.stdout.write(text_of(sys.argv[2], sys.argv[3]))
        return
    settings = json.load(sys.stdin)
    names = {"__name__": "__main__", **variables(settings)}
    exec(compile(text_of(sys.argv[1], settings["api"]), sys.argv[1], "exec"), names)
    say(done=True, report=names.get("report"), exit_code=names.get("r", {}).get("exit_code"), pushes=names.get("deadline_pushes"))


main()
