from fastapi import FastAPI, Response
from fastapi.testclient import TestClient

from plugins.integrity_plugin import IntegrityPlugin


def test_the_plugin_forbids_other_sites_to_frame_pages_and_keeps_a_pages_own_policy():
    app = FastAPI()
    app.get("/plain")(lambda: "page")
    app.get("/own")(lambda: Response("page", headers={"Content-Security-Policy": "default-src 'none'"}))
    for registered in IntegrityPlugin.fastapi_root_middlewares:  # as Airflow does
        app.add_middleware(registered["middleware"])
    client = TestClient(app)
    assert client.get("/plain").headers["Content-Security-Policy"] == "frame-ancestors 'self'"
    assert client.get("/missing").headers["Content-Security-Policy"] == "frame-ancestors 'self'"
    assert client.get("/own").headers["Content-Security-Policy"] == "default-src 'none'"
