"""Simulates the token endpoint of the Azure Arc agent, then runs a command. Run it inside namespaces:

python himds.py MODE COMMAND…

Modes: `good`; `elsewhere` names a key outside of its directory; `wrong` rejects the key; `away` does not respond.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

ROOM = Path("/var/opt/azcmagent/tokens")
KEY = ROOM / "one.key"


class Agent(BaseHTTPRequestHandler):
    manner = "good"

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        if asked.path != "/metadata/identity/oauth2/token" or self.headers.get("Metadata") != "true":
            self._say(400, {"error": "invalid_request", "error_description": "Bad request"})
        elif "Authorization" not in self.headers:
            realm = "/etc/passwd" if self.manner == "elsewhere" else str(KEY)
            self._say(401, {}, f"Basic realm={realm}")
        elif self.manner == "wrong" or self.headers["Authorization"] != f"Basic {KEY.read_text()}":
            self._say(403, {"error": "forbidden", "error_description": "The machine is disconnected"})
        else:
            resource = parse_qs(asked.query)["resource"][0]
            self._say(200, {"access_token": f"for {resource}", "expires_in": "3600", "token_type": "Bearer"})

    def _say(self, status: int, body: dict[str, str], challenge: str = "") -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        if challenge:
            self.send_header("WWW-Authenticate", challenge)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        return


def main() -> None:
    Agent.manner = sys.argv[1]
    ROOM.mkdir(parents=True)
    KEY.write_text("the-key")
    KEY.chmod(0o600)
    if Agent.manner != "away":
        server = ThreadingHTTPServer(("127.0.0.1", 40342), Agent)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.exit(subprocess.run(sys.argv[2:], check=False).returncode)


main()
