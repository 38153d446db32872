"""A hub on this machine: what an upload and a download need of it, in memory, with faults on request."""

import base64
import hashlib
import http.server
import json
import re
import socket
import struct
import threading
import urllib.parse
from dataclasses import dataclass, field

LARGE = 2000
# What each branch is at.
COMMIT = "0" * 40


@dataclass
class Fault:
    """What happens to requests of a method whose path matches, `times` times, the first `skip` left alone.

    `status` 0 resets the connection without an answer. With `after` the request is carried out first.
    """

    method: str
    path: str
    status: int
    times: int = 1
    headers: dict = field(default_factory=dict)
    body: str = ""
    skip: int = 0
    after: bool = False


class StubHub:
    """Repositories, blobs and requests.

    Attributes:
      endpoint: the address.
      token: the one that may write.
      chunk: size of a part; files that are larger are uploaded in parts.
      repos: repo -> {"private", "branches": branch -> {name: contents}, "commits": [messages]}.
      blobs: sha256 -> contents.
      requests: (method, path, bytes of the body).
      faults: see `Fault`.
      hold: path part -> event that a PUT waits for before it answers.
    """

    def __init__(self, token: str):
        self.token, self.chunk = token, 1 << 30
        self.repos, self.blobs, self.requests, self.faults, self.hold = {}, {}, [], [], {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.lock = threading.Lock()
        hub = self

        class Handler(_Handler):
            stub = hub

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        for event in self.hold.values():
            event.set()
        self.server.shutdown()
        self.server.server_close()

    def fail(self, method: str, path: str, status: int, **options) -> None:
        """Adds a fault."""
        self.faults.append(Fault(method, path, status, **options))

    def sent(self, method: str, path: str) -> int:
        """How many requests of a method have a path with that in it."""
        return sum(one == method and path in where for one, where, _ in self.requests)

    def files(self, repo: str, branch: str = "main") -> dict[str, bytes]:
        """What a branch holds."""
        return self.repos[repo]["branches"][branch]

    def make(self, repo: str, private: bool = False) -> None:
        """Makes a repository."""
        self.repos[repo] = {"private": private, "branches": {"main": {}}, "commits": []}


class _Handler(http.server.BaseHTTPRequestHandler):
    stub: StubHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_arguments):
        pass

    def do_GET(self):
        self._serve()

    do_POST = do_PUT = do_HEAD = do_GET

    def _serve(self):
        path = urllib.parse.unquote(self.path)
        body = self._body()
        with self.stub.lock:
            self.stub.requests.append((self.command, path, len(body)))
            fault = self._fault(path)
        if fault and fault.status == 0 and not fault.after:
            return self._reset()
        if fault and not fault.after:
            return self._answer(fault.status, fault.body, fault.headers)
        for part, event in list(self.stub.hold.items()):
            if self.command == "PUT" and part in path:
                event.wait(30)
        with self.stub.lock:
            status, answer, headers = self._route(path, body)
        if fault:
            return self._reset() if fault.status == 0 else self._answer(fault.status, fault.body, fault.headers)
        return self._answer(status, answer, headers)

    def _fault(self, path: str) -> Fault | None:
        for fault in self.stub.faults:
            if fault.method == self.command and fault.path in path and fault.times > 0:
                if fault.skip > 0:
                    fault.skip -= 1
                    continue
                fault.times -= 1
                return fault
        return None

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _reset(self):
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def _answer(self, status, answer, headers):
        content = answer if isinstance(answer, bytes) else (answer if isinstance(answer, str) else json.dumps(answer)).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _route(self, path: str, body: bytes):
        stub = self.stub
        place, _, query = path.partition("?")
        if place.startswith("/storage/"):
            # Storage knows no token: the address itself is signed.
            assert "Authorization" not in self.headers and query == "signature=s3cr3t"
            return self._store(place, body)
        if self.headers.get("Authorization") != f"Bearer {stub.token}":
            return 401, {"error": "Invalid credentials"}, {}
        if place == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}, {}
        if place == "/api/repos/create":
            wanted = json.loads(body)
            repo = f"{wanted['organization']}/{wanted['name']}"
            if repo in stub.repos:
                return 409, {"error": "You already created this model repo", "url": f"{stub.endpoint}/{repo}"}, {}
            stub.make(repo, wanted.get("visibility") == "private" or bool(wanted.get("private")))
            return 200, {"url": f"{stub.endpoint}/{repo}", "name": repo}, {}
        if match := re.fullmatch(r"/(\w[^/]*/[^/]+)\.git/info/lfs/objects/batch", place):
            return 200, {"transfer": "basic", "objects": [self._action(one) for one in json.loads(body)["objects"]]}, {}
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", place):
            content = stub.files(match[1])[match[3]]
            return 200, content, {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": match[2]}
        match = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(preupload|commit|branch|revision|tree)/([^/]+))?", place)
        repo, what, branch = match.groups()
        if repo not in stub.repos:
            return 404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"}
        found = stub.repos[repo]
        if what in (None, "revision", "tree"):
            branch = "main" if branch in (None, COMMIT) else branch
            if branch not in found["branches"]:
                return 404, {"error": "Revision not found"}, {"X-Error-Code": "RevisionNotFound"}
        if what in (None, "revision"):
            siblings = [{"rfilename": name} for name in found["branches"][branch]]
            return 200, {"id": repo, "private": found["private"], "sha": COMMIT, "siblings": siblings, "tags": []}, {}
        if what == "tree":
            files = found["branches"][branch].items()
            return 200, [{"type": "file", "path": name, "size": len(one), "oid": "0" * 40} for name, one in files], {}
        if what == "branch":
            if branch in found["branches"]:
                return 409, {"error": "Reference already exists"}, {}
            found["branches"][branch] = dict(found["branches"]["main"])
            return 200, {}, {}
        if branch not in found["branches"]:
            return 404, {"error": "Revision not found"}, {"X-Error-Code": "RevisionNotFound"}
        return self._preupload(found, branch, body) if what == "preupload" else self._commit(found, repo, branch, body)

    def _preupload(self, found, branch, body):
        def mode(one):
            old = found["branches"][branch].get(one["path"])
            oid = None
            if old is not None:
                large = len(old) > LARGE
                header = b"blob %d\0" % len(old)
                oid = hashlib.sha256(old).hexdigest() if large else hashlib.sha1(header + old).hexdigest()
            kind = "lfs" if one["size"] > LARGE else "regular"
            return {"path": one["path"], "uploadMode": kind, "shouldIgnore": False, "oid": oid}

        return 200, {"files": [mode(one) for one in json.loads(body)["files"]]}, {}

    def _action(self, one):
        stub, oid, size = self.stub, one["oid"], one["size"]
        if oid in stub.blobs:
            return {"oid": oid, "size": size}
        place = f"{stub.endpoint}/storage/{oid}"
        upload = {"href": f"{place}?signature=s3cr3t"}
        if size > stub.chunk:
            count = -(-size // stub.chunk)
            parts = {str(i + 1): f"{place}/{i + 1}?signature=s3cr3t" for i in range(count)}
            upload = {"href": f"{place}/complete?signature=s3cr3t", "header": {"chunk_size": str(stub.chunk), **parts}}
        return {"oid": oid, "size": size, "actions": {"upload": upload}}

    def _store(self, place, body):
        stub = self.stub
        _, _, oid, *part = place.split("/")
        if part == ["complete"]:
            numbers = [one["partNumber"] for one in json.loads(body)["parts"]]
            body = b"".join(stub.parts[oid][number] for number in numbers)
        elif part:
            stub.parts.setdefault(oid, {})[int(part[0])] = body
            return 200, "", {"ETag": f'"{len(body)}"'}
        if hashlib.sha256(body).hexdigest() != oid:
            return 400, {"error": "the contents have another hash"}, {}
        stub.blobs[oid] = body
        return 200, "", {}

    def _commit(self, found, repo, branch, body):
        lines = [json.loads(line) for line in body.splitlines()]
        new = dict(found["branches"][branch])
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "lfsFile":
                if value["oid"] not in self.stub.blobs:
                    return 400, {"error": f"{value['path']}: the blob is missing"}, {}
                new[value["path"]] = self.stub.blobs[value["oid"]]
            elif line["key"] == "deletedFile":
                del new[value["path"]]
            else:
                new[value["path"]] = base64.b64decode(value["content"])
        found["branches"][branch] = new
        found["commits"].append(lines[0]["value"]["summary"])
        oid = f"{len(found['commits']):040d}"
        return 200, {"success": True, "commitOid": oid, "commitUrl": f"{self.stub.endpoint}/{repo}/commit/{oid}"}, {}
