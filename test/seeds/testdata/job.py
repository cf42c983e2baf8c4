"""One unit of work in one clean machine: in, work, out, gone. Free variables: job_id, clone_url, upload_url."""
import contextlib
import os

import requests

API = "https://dayfly.example/v1"
session = requests.Session()
session.headers["Authorization"] = f"Bearer {os.environ['AAS_API_KEY']}"


@contextlib.contextmanager
def machine(**spec):
    made = session.post(f"{API}/sandboxes", json=spec, headers={"Idempotency-Key": f"job-{job_id}"})
    made.raise_for_status()
    where = f"{API}/sandboxes/{made.json()['id']}"

    def run(command, seconds=120, **env):
        result = session.post(f"{where}/exec", json={"command": command, "env": env, "timeout_ms": seconds * 1000}).json()
        if result["exit_code"] != 0:
            raise RuntimeError(f"{command}: {result['stdout']}{result['stderr']}")
        return result

    try:
        yield run
    finally:
        session.delete(where)  # returns minutes; the lease is what guarantees the end


with machine(timeout_minutes=20, labels={"job": job_id}) as run:
    run("git clone -q --depth 1 $FROM work", FROM=clone_url)
    run("cd work && python3 -m venv env && env/bin/pip install -qr requirements.txt", seconds=300)
    r = run("cd work && env/bin/python -m pytest -q", seconds=600)
    report = r["stdout"]
    run("cd work && tar czf - artifacts | curl -fsS -T - $TO", TO=upload_url)
