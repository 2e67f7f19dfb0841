"""A receiver of webhooks, as a program of its own: it writes what comes to a file, and answers as another file says."""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

came, answer = Path(sys.argv[1]), Path(sys.argv[2])
writing = threading.Lock()


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        length = int(self.headers["content-length"])
        body = self.rfile.read(length)
        if len(body) < length:
            return  # the sender was killed in the middle
        said = json.loads(answer.read_text()) if answer.exists() else {"status": 200, "headers": {}}
        line = {"path": self.path, "headers": {k.lower(): v for k, v in self.headers.items()}, "body": body.decode()}
        with writing, came.open("a") as file:
            file.write(json.dumps(line | {"status": said["status"]}) + "\n")
        self.send_response(said["status"])
        for name, value in said["headers"].items():
            self.send_header(name, value)
        self.send_header("content-length", "0")
        self.end_headers()

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        pass


server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[3])), Receiver)
print(server.server_address[1], flush=True)
server.serve_forever()
