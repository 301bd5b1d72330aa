"""Etags: what a write may demand of the resource that it replaces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.service.rp.api.bodies import token
from tests.service.rp.api.test_arm import assert_refused

if TYPE_CHECKING:
    from tests.service.rp.api.client import Api


def test_a_write_with_the_current_etag_is_done(admin: Api, name: str) -> None:
    etag = admin.put(name).headers["etag"]

    assert admin.put(name, token(maxPods=9), if_match=etag).status == 200
    assert admin.delete(name, if_match=admin.get(name).headers["etag"]).status == 200


def test_a_write_with_an_old_etag_changes_nothing(admin: Api, name: str) -> None:
    etag = admin.put(name).headers["etag"]
    current = admin.put(name, token(maxPods=9)).json

    assert_refused(admin.put(name, token(maxPods=8), if_match=etag), 412, "PreconditionFailed")
    assert_refused(admin.delete(name, if_match=etag), 412, "PreconditionFailed")
    assert admin.get(name).json["properties"]["nodeConfig"] == current["properties"]["nodeConfig"]


def test_one_of_several_etags_is_enough(admin: Api, name: str) -> None:
    etag = admin.put(name).headers["etag"]

    assert admin.put(name, if_match=f'"1", {etag}').status == 200


def test_nothing_is_changed_where_nothing_is(admin: Api, name: str) -> None:
    assert_refused(admin.put(name, if_match="*"), 412, "PreconditionFailed")
    assert_refused(admin.put(name, if_match='"1"'), 412, "PreconditionFailed")
    assert_refused(admin.delete(name, if_match="*"), 412, "PreconditionFailed")
    assert admin.get(name).status == 404
    assert admin.delete(name).status == 204


def test_what_must_be_new_is_made_once(admin: Api, name: str) -> None:
    assert admin.put(name, if_none_match="*").status == 201
    assert_refused(admin.put(name, if_none_match="*"), 412, "PreconditionFailed")


def test_a_deletion_of_anything_that_is_there(admin: Api, name: str) -> None:
    admin.put(name)

    assert admin.delete(name, if_match="*").status == 200


def test_who_has_the_newest_already_is_not_sent_it_again(admin: Api, name: str) -> None:
    etag = admin.put(name).headers["etag"]

    same = admin.get(name, if_none_match=etag)

    assert (same.status, same.content, same.headers["etag"]) == (304, b"", etag)
    assert admin.get(name, if_none_match="*").status == 304
    assert admin.get(name, if_none_match=f'"1", {etag}').status == 304
    assert admin.get(name, if_none_match=f"W/{etag}").status == 304
    assert admin.get(name, if_none_match='"1"').status == 200


def test_an_etag_changes_with_the_configuration_and_not_with_the_status(admin: Api, name: str) -> None:
    first = admin.put(name).headers["etag"]
    admin.report(name, {"conditions": [{"type": "Ready", "status": "True"}]})

    assert admin.get(name).headers["etag"] == first
    assert admin.put(name).headers["etag"] != first


def test_a_refused_write_makes_no_token(admin: Api, name: str) -> None:
    url = admin.put(name, token(), url=True).properties["configUrl"]

    admin.put(name, token(), url=True, if_none_match="*")
    admin.put(name, token(maxPods=0), url=True)

    assert admin.fetch(url).status == 200
