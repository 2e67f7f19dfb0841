"""A real object store: SeaweedFS, which checks signatures and conditions. One for each process of the tests."""

import atexit
import json
import shutil
import subprocess
import sysconfig
import tempfile
from functools import cache
from http.client import HTTPConnection
from pathlib import Path

from hocket.log.archives.s3_bucket import S3Access, _Bucket
from tests.ports import free_port
from tests.waiting import wait_for

KEY_ID, SECRET = "key", "secret of the tests"
# A busy machine takes some seconds.
START_S = 120.0


def program() -> Path | None:
    """Where the server is; None if it is not installed."""
    path = Path(sysconfig.get_path("scripts")) / "weed"
    return path if path.is_file() else None


@cache
def endpoint() -> str:
    """The address of the server, which is started once."""
    found = program()
    assert found is not None
    place = Path(tempfile.mkdtemp(prefix="hocket-s3-"))
    identity = {"name": "tests", "credentials": [{"accessKey": KEY_ID, "secretKey": SECRET}], "actions": ["Admin"]}
    (place / "s3.json").write_text(json.dumps({"identities": [identity]}))
    port = free_port()
    options = {
        "dir": place,
        "ip": "127.0.0.1",
        "s3.config": place / "s3.json",
        "s3.port": port,
        # Beside each of these ports it listens on one of its own.
        **{f"{part}.port": free_port() for part in ("master", "volume", "filer")},
        **{f"{part}.port.grpc": free_port() for part in ("master", "volume", "filer", "s3")},
        # Other protocols, on ports that all would share.
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "volume.max": 20,
        "master.volumeSizeLimitMB": 64,
    }
    with (place / "log").open("wb") as log:
        child = subprocess.Popen(
            [found, "server", "-s3", *(f"-{name}={value}" for name, value in options.items())],
            cwd=place,
            stdout=log,
            stderr=log,
        )

    def end() -> None:
        child.kill()
        child.wait()
        shutil.rmtree(place, ignore_errors=True)

    atexit.register(end)

    def answers() -> bool:
        assert child.poll() is None, (place / "log").read_text()[-2000:]
        try:
            connection = HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/")
            return connection.getresponse().status == 403
        except OSError:
            return False

    wait_for(answers, "the object store", START_S)
    return f"http://127.0.0.1:{port}"


def environment() -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": endpoint(),
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "eu-central-1",
    }


@cache
def bucket() -> str:
    """The one bucket. Tests write behind prefixes of their own."""
    access = S3Access.read(environment())
    wait_for(lambda: _Bucket(access, "tests", "")._ask("PUT", "").status in (200, 409), "the bucket", START_S)
    return "tests"
