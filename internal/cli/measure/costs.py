import json, os, shutil, socket, subprocess, tempfile, threading, time

def cpu():
    n = 0
    for i in range(2000000):
        n += i & 7

def syscalls():
    for _ in range(100000):
        os.getppid()

def processes():
    for _ in range(50):
        subprocess.run(["true"], check=True)

def files():
    d = tempfile.mkdtemp()
    try:
        for i in range(1000):
            a, b = f"{d}/a{i}", f"{d}/b{i}"
            with open(a, "w") as f:
                f.write("x" * 1000)
            os.rename(a, b)
            os.stat(b)
            with open(b) as f:
                f.read()
            os.unlink(b)
    finally:
        shutil.rmtree(d)

def tree():
    n = 0
    for path, _, names in os.walk("/usr"):
        for name in names:
            os.lstat(os.path.join(path, name))
            n += 1
            if n == 5000:
                return

def network():
    server = socket.create_server(("127.0.0.1", 0))
    def send():
        with socket.create_connection(server.getsockname()) as c:
            for _ in range(1024):
                c.sendall(b"x" * 65536)
    t = threading.Thread(target=send)
    t.start()
    conn, _ = server.accept()
    left = 64 << 20
    while left:
        left -= len(conn.recv(1 << 20))
    t.join()
    conn.close()
    server.close()

spent = {}
for work in (cpu, syscalls, processes, files, tree, network):
    began = time.perf_counter()
    work()
    spent["cost_" + work.__name__] = (time.perf_counter() - began) * 1000
print(json.dumps(spent))
