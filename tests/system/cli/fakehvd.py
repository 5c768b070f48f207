"""A stand-in for hvd: answers on a Unix socket what a test tells it to, and keeps what was asked."""
import http.server
import json
import os
import socketserver
import threading


class Answer:
    """status, headers and body of one answer; `raw` replaces them all, then the socket closes."""

    def __init__(self, status=200, body=b"", type="application/json", raw=None, chunks=None):
        self.status, self.type, self.raw, self.chunks = status, type, raw, chunks
        self.body = body if isinstance(body, bytes) else json.dumps(body).encode()


def problem(status, code, detail, field=None, title="No"):
    body = {"type": "about:blank", "title": title, "status": status, "code": code, "detail": detail}
    if field:
        body["field"] = field
    return Answer(status, body, "application/problem+json")


class Request:
    def __init__(self, method, path, headers, body):
        self.method, self.path, self.headers, self.body = method, path, headers, body

    @property
    def json(self):
        return json.loads(self.body)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def address_string(self):
        return "unix"

    def log_message(self, *args):
        pass

    def handle_one(self):
        size = int(self.headers.get("Content-Length") or 0)
        request = Request(self.command, self.path, self.headers, self.rfile.read(size))
        daemon = self.server.daemon
        with daemon.lock:
            daemon.requests.append(request)
        answer = daemon.answer(request)
        if callable(answer):
            answer = answer(request)
        if answer.raw is not None:
            self.wfile.write(answer.raw)
            self.close_connection = True
            return
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.type)
        if answer.chunks is not None:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for chunk in answer.chunks:
                if chunk is None:  # break off
                    self.close_connection = True
                    return
                self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
            return
        if answer.status != 204:
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if answer.status != 204:
            self.wfile.write(answer.body)

    do_GET = do_POST = do_PUT = do_DELETE = handle_one


class Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass  # a client that goes away is part of the tests


class FakeDaemon:
    def __init__(self, path, answers=()):
        """`answers`: (method, path, answer) that are there before the first request can come."""
        self.path = path
        self.lock = threading.Lock()
        self.requests = []
        self.answers = {(method, path): answer for method, path, answer in answers}
        self.default = problem(404, "not-found", "no such object")
        self.server = Server(path, Handler)
        self.server.daemon = self
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def on(self, method, path, answer):
        """`answer` is an Answer, or a function of the request that gives one."""
        self.answers[(method, path)] = answer

    def answer(self, request):
        path = request.path.split("?")[0]
        return self.answers.get((request.method, path), self.default)

    def asked(self, method, path):
        with self.lock:
            return [r for r in self.requests if r.method == method and r.path.split("?")[0] == path]

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        os.unlink(self.path)
