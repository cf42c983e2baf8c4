"""A long job whose lease grows only while its log does. Free variables: sid, run, H, requests, made_progress, finished, time."""
deadline_pushes = 0
while not finished:
    if made_progress(run("tail -n 1 build.log").get("stdout", "")):
        requests.post(f"{API}/sandboxes/{sid}/extend", headers=H, json={"additional_seconds": 5})
        deadline_pushes += 1
    time.sleep(2)
