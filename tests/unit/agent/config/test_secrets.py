"""Tests of secrets: none is in a message, dump or output, and each can be read from a file."""

from __future__ import annotations

import json
import logging
import traceback
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.config.loader import LoadedConfig, load, load_text, missing_for_join
from aks_flex_node.agent.config.render import setting_rows
from aks_flex_node.agent.config.resolved import ca_certificate, join_token
from aks_flex_node.errors import ConfigError
from aks_flex_node.settings.base import to_document
from aks_flex_node.settings.secret import Secret
from tests.unit.agent.config.builders import (
    PEM,
    TOKEN,
    Settings,
    load_plain,
    load_settings,
    problems_of,
    settings,
)

if TYPE_CHECKING:
    from pathlib import Path

CANARY = "canary-8c1f-Zq"

WRONG = [
    {"azure.servicePrincipal.clientSecret": [CANARY]},
    {"azure.servicePrincipal.clientSecret": {"value": CANARY}},
    {"azure.servicePrincipal.clientSecrt": CANARY},
    {"azure.servicePrincipal": CANARY},
    {"azure.servicePrincipal": [CANARY]},
    {"azure.servicePrincipal": {"clientSecret": CANARY}},
    {"azure.servicePrincipal": {"clientSecret": CANARY, "clientSecretFile": "/x", "clientId": "a"}},
    {"azure.servicePrincipal": {"clientSecret": CANARY, "clientId": f"{CANARY}!"}},
    {"azure.servicePrincipal": {"clientSecretFile": CANARY, "clientId": "a"}},
    {"azure.bootstrapToken.token": CANARY},
    {"azure.bootstrapToken.token": [CANARY]},
    {"azure.bootstrapToken.tokenFile": CANARY},
    {"azure.bootstrapToken.tokenFile": [CANARY]},
    {"azure.bootstrapToken": CANARY},
    {"azure.bootstraptoken": CANARY},
    {"azure": CANARY},
    {"clientSecret": CANARY},
    {"password": CANARY},
    {"proxy.https": f"ftp://me:{CANARY}@proxy"},
    {"proxy.https": [f"http://me:{CANARY}@proxy"]},
    {"artifacts.baseURL": f"ftp://example.com/?sig={CANARY}"},
    {"node.kubelet.serverURL": f"https://me:{CANARY}@api"},
    {"runc.url": f"https://me:{CANARY}@example.com/%d"},
    {"registryMirrors": {f"https://me:{CANARY}@mirror": []}},
    {"registryMirrors": {"docker.io": [f"ftp://me:{CANARY}@mirror"]}},
]


def everything_said(error: BaseException) -> str:
    chain = "".join(traceback.format_exception(error))
    return f"{error} {error!r} {vars(error)} {error.args} {chain} {error.__cause__!r} {error.__context__!r}"


@pytest.mark.parametrize("values", WRONG, ids=[json.dumps(values).replace(CANARY, "S") for values in WRONG])
def test_secret_in_an_invalid_config_is_not_printed(values: Settings) -> None:
    with pytest.raises(ConfigError) as caught:
        load_plain(settings(values), "test.json")

    assert CANARY not in everything_said(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        f'{{"azure": {{"bootstrapToken": {{"token": "{CANARY}" x}}}}}}',
        f"azure:\n  servicePrincipal:\n    clientSecret: *{CANARY.replace('-', '')}\n",
        f"azure:\n  clientSecret: '{CANARY}\n",
        f"azure:\n  clientSecret: !{CANARY} x\n",
        f"clientSecret: {CANARY}\n  x: y\n",
        f"&{CANARY} a: &{CANARY} b: c\n",
        CANARY,
        f'"{CANARY}"',
    ],
)
def test_secret_in_a_malformed_file_is_not_printed(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_plain(text, "test.json" if text.startswith("{") else "test")

    said = everything_said(caught.value)
    assert CANARY not in said
    assert CANARY.replace("-", "") not in said


@pytest.mark.parametrize(
    ("env", "flags"),
    [
        ({"AKS_FLEX_NODE_AZURE__BOOTSTRAP_TOKEN__TOKN": CANARY}, {}),
        ({"AKS_FLEX_NODE_AZURE__BOOTSTRAP_TOKEN": CANARY}, {}),
        ({"AKS_FLEX_NODE_AZURE__BOOTSTRAP_TOKEN": f'["{CANARY}"]'}, {}),
        ({"AKS_FLEX_NODE_AZURE__BOOTSTRAP_TOKEN__TOKEN": CANARY}, {}),
        ({}, {"azure.bootstrapToken.tokn": CANARY}),
        ({}, {"azure.bootstrapToken": CANARY}),
        ({}, {"azure.bootstrapToken.token": CANARY}),
        ({}, {"azure.bootstrapToken.token": [CANARY]}),
    ],
)
def test_secret_from_environment_or_flag_is_not_printed_in_errors(env: dict[str, str], flags: Settings) -> None:
    with pytest.raises(ConfigError) as caught:
        load_text("{}", "test.json", env, flags)

    assert CANARY not in everything_said(caught.value)


def loaded_with_secrets() -> LoadedConfig:
    return load_settings(
        {
            "azure.bootstrapToken.token": TOKEN,
            "azure.servicePrincipal": {"clientId": "a", "clientSecret": CANARY},
            "proxy": {"http": f"http://me:{CANARY}@proxy:3128", "https": f"http://me:{CANARY}@proxy:3128"},
            "artifacts.baseURL": f"https://me:{CANARY}@example.com/a",
            "registryMirrors": {"docker.io": [f"https://me:{CANARY}@mirror"]},
            "node.kubelet.extraConfig": {"staticPodURLHeader": {"Authorization": [CANARY]}},
        }
    )


def test_config_show_masks_loaded_secrets() -> None:
    shown = json.dumps([vars(row) for row in setting_rows(loaded_with_secrets())])

    assert CANARY not in shown
    assert TOKEN not in shown
    assert '"azure.bootstrapToken.token", "value": "***"' in shown
    assert "http://***@proxy:3128" in shown


def test_loaded_secret_is_in_no_dump_and_no_log(caplog: pytest.LogCaptureFixture) -> None:
    loaded = load_settings(
        {
            "azure.bootstrapToken.token": TOKEN,
            "azure.servicePrincipal": {"clientId": "a", "clientSecret": CANARY},
            "proxy.https": f"http://me:{CANARY}@proxy:3128",
        }
    )
    config = loaded.config
    logging.getLogger("test").warning("%s %r %s", config, loaded, f"{config.azure.bootstrap_token!s}")

    for said in (
        repr(config),
        str(config),
        repr(loaded),
        str(to_document(config)),
        json.dumps(to_document(config)),
        caplog.text,
    ):
        assert CANARY not in said
        assert TOKEN not in said
    assert config.azure.bootstrap_token is not None
    assert config.azure.bootstrap_token.token == Secret(TOKEN)
    assert config.proxy.https == f"http://me:{CANARY}@proxy:3128"


def test_conversion_error_does_not_quote_the_value() -> None:
    (problem,) = problems_of(settings({"azure.bootstrapToken.token": [CANARY]}))

    assert "non-empty" in problem.reason
    assert CANARY not in str(problem)


def test_masked_value_is_refused_as_a_secret() -> None:
    (problem,) = problems_of(settings({"azure.servicePrincipal": {"clientId": "a", "clientSecret": "***"}}))

    assert "Set the secret itself" in problem.reason


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_secrets_and_certificates_are_read_from_files(tmp_path: Path) -> None:
    files = {
        "azure.bootstrapToken.tokenFile": str(write(tmp_path / "token", f"{TOKEN}\n")),
        "azure.servicePrincipal": {"clientId": "a", "clientSecretFile": str(write(tmp_path / "secret", CANARY))},
        "node.kubelet.caCertFile": str(write(tmp_path / "ca.crt", PEM, 0o644)),
    }

    loaded = load_settings(files)

    principal = loaded.config.azure.service_principal
    assert join_token(loaded.config) == Secret(TOKEN)
    assert principal is not None
    assert principal.client_secret == Secret(CANARY)
    assert (ca_certificate(loaded.config) or b"").strip() == PEM.strip().encode()
    assert loaded.warnings == []
    assert loaded.origins["azure.bootstrapToken.token"] == f"{tmp_path}/token, set by test.json:1"


def test_service_principal_certificate_file_keeps_its_line_breaks(tmp_path: Path) -> None:
    both = f"{PEM}-----BEGIN PRIVATE KEY-----\n{CANARY}\n-----END PRIVATE KEY-----\n"
    file = write(tmp_path / "principal.pem", both)

    loaded = load_settings({"azure.servicePrincipal": {"clientId": "a", "clientCertificateFile": str(file)}})

    principal = loaded.config.azure.service_principal
    assert principal is not None
    assert principal.client_certificate == Secret(both.strip())
    assert CANARY not in repr(loaded.config)


def test_secret_flag_overrides_the_secret_file_setting() -> None:
    config = load_settings(
        {"azure.bootstrapToken.tokenFile": "/nowhere"}, {"azure.bootstrapToken.token": TOKEN}
    ).config

    assert join_token(config) == Secret(TOKEN)
    assert config.azure.bootstrap_token is not None
    assert config.azure.bootstrap_token.token_file is None


def test_secret_and_secret_file_together_are_refused() -> None:
    found = problems_of(settings({"azure.bootstrapToken": {"token": TOKEN, "tokenFile": "/nowhere"}}))

    assert "Set only one of them" in found[0].reason


@pytest.mark.parametrize(("content", "said"), [(b"", "empty"), (b" \n", "empty"), (b"\xff\xfe", "not UTF-8")])
def test_empty_or_undecodable_secret_file_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)

    (problem,) = problems_of(settings({"azure.bootstrapToken.tokenFile": str(file)}))

    assert said in problem.reason
    assert str(file) in problem.reason


def test_missing_token_file_is_a_warning_until_a_join(tmp_path: Path) -> None:
    file = tmp_path / "token"

    loaded = load_settings({"azure.bootstrapToken.tokenFile": str(file)})

    assert join_token(loaded.config) is None
    assert loaded.warnings == [
        f"azure.bootstrapToken.tokenFile is {file}, which does not exist. A first join needs it."
    ]
    (problem,) = [each for each in missing_for_join(loaded.config) if each.path == "azure.bootstrapToken.tokenFile"]
    assert problem.reason == f"is {file}, which does not exist. A join needs it."


def test_missing_client_secret_file_is_refused(tmp_path: Path) -> None:
    principal = {"clientId": "a", "clientSecretFile": str(tmp_path / "secret")}

    (problem,) = problems_of(settings({"azure.servicePrincipal": principal}))

    assert "no such file" in problem.reason


@pytest.mark.parametrize(
    "flags",
    [{"azure.bootstrapToken.token": TOKEN}, {"azure.bootstrapToken": json.dumps({"token": TOKEN})}],
    ids=["setting", "section"],
)
def test_secret_on_the_command_line_gives_a_warning(flags: Settings) -> None:
    (warning,) = load_settings({}, flags).warnings

    assert warning == (
        "azure.bootstrapToken.token was set on the command line, which other users of this machine can read."
        " Use azure.bootstrapToken.tokenFile instead."
    )


def test_directory_or_oversized_secret_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * (1 << 20) + b"y")

    (first,) = problems_of(settings({"azure.bootstrapToken.tokenFile": str(tmp_path)}))
    (second,) = problems_of(settings({"azure.bootstrapToken.tokenFile": str(tmp_path / "large")}))

    assert "it is not a regular file" in first.reason or "is a directory" in first.reason
    assert "larger than 1 MiB" in second.reason


def test_content_of_an_invalid_secret_file_is_not_printed(tmp_path: Path) -> None:
    file = write(tmp_path / "token", CANARY)

    with pytest.raises(ConfigError) as caught:
        load_settings({"azure.bootstrapToken.tokenFile": str(file)})

    assert CANARY not in everything_said(caught.value)
    assert "is not a bootstrap token" in caught.value.message


def test_secret_file_readable_by_others_gives_a_chmod_warning(tmp_path: Path) -> None:
    file = write(tmp_path / "token", TOKEN, 0o640)

    assert load_settings({"azure.bootstrapToken.tokenFile": str(file)}).warnings == [
        f"{file} contains a secret and can be read by other users. Run `chmod 600 {file}`."
    ]


@pytest.mark.parametrize(
    ("mode", "secret", "warned"),
    [(0o600, True, False), (0o640, True, True), (0o644, True, True), (0o640, False, False), (0o644, False, True)],
)
def test_config_with_secrets_readable_by_others_gives_a_warning(
    tmp_path: Path, mode: int, secret: bool, warned: bool
) -> None:
    values: Settings = {"azure.bootstrapToken.token": TOKEN} if secret else {"node.maxPods": 5}
    file = write(tmp_path / "config.json", settings(values), mode)

    warnings = load(file, {}, {}).warnings

    assert bool(warnings) == warned
    assert all(f"chmod 600 {file}" in warning for warning in warnings)


def test_world_writable_config_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "config.json", "{}", 0o602)

    with pytest.raises(ConfigError, match="is world-writable"):
        load(file, {}, {})


@pytest.mark.parametrize(("content", "name"), [(None, "config-not-found"), (b"\xff\xfe\x00", "config-unreadable")])
def test_missing_or_undecodable_config_has_its_own_error_name(
    tmp_path: Path, content: bytes | None, name: str
) -> None:
    file = tmp_path / "config.json"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(ConfigError) as caught:
        load(file, {}, {})

    assert caught.value.name == name


def test_directory_as_config_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, {}, {})

    assert caught.value.name == "config-unreadable"
