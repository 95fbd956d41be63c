"""Changes of the configuration by request: none that names a file, an address, a program or who may do what
(the class of CVE-2023-33246 and CVE-2023-37582), however it is written. Nothing of a refused change counts,
now or after a restart."""

from __future__ import annotations

import contextlib
import logging
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kourou.broker import BrokerConfig
from kourou.namesrv import NameServer, NameServerConfig
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from support.sites.broker import Peer, Site

EVIL = "/tmp/evil"
SECRET = "of-the-broker"
BOTH = (
    "rocketmqHome", "configBlackList", "bindAddress", "listenPort", "authConfigPath", "authenticationEnabled",
    "authorizationEnabled", "authenticationWhitelist", "initAuthenticationUser", "tls.server.mode",
    "tls.config.file", "tls.server.certPath", "innerClientAuthenticationCredentials",
    "haAuthenticationEnable", "haTrustedSlaves",
)  # fmt: skip
KEYS = {
    "broker": (
        *BOTH, "brokerConfigPath", "storePathRootDir", "storePathCommitLog", "readOnlyCommitLogStorePaths",
        "storePathDLedgerCommitLog", "storePathEpochFile", "brokerIP1", "brokerIP2", "haMasterAddress",
        "haTlsEnable", "haPlaintextAllowed", "filterServerNums", "authenticationMetadataProvider",
        "haListenPort",
        "brokerClusterName", "authenticationStrategy", "authorizationStrategy", "messageStorePlugIn",
    ),
    "name server": (*BOTH, "configStorePath", "kvConfigPath", "clusterName", "controllerStorePath"),
}  # fmt: skip
CASES = [(kind, key) for kind, keys in KEYS.items() for key in keys]


class Attacked(NamedTuple):
    """A server, and how its configuration is asked for and changed."""

    peer: Peer
    file: Path
    get: RequestCode
    update: RequestCode
    harmless: str
    load: Callable[[Path], BrokerConfig | NameServerConfig]

    def config(self) -> str:
        """What the server says its configuration is."""
        return bytes(self.peer.ask(RemotingCommand(self.get)).body or b"").decode()

    def change(self, body: str) -> RemotingCommand:
        return self.peer.call(RemotingCommand(self.update, {}, body.encode()))


@pytest.fixture
def attacked(request: pytest.FixtureRequest, site: Site, name_server: NameServer) -> Iterator[Attacked]:
    load: Callable[[Path], BrokerConfig | NameServerConfig] = NameServerConfig.load
    if request.param == "broker":
        codes = RequestCode.GET_BROKER_CONFIG, RequestCode.UPDATE_BROKER_CONFIG
        port, file, harmless = site.port, site.broker.config.broker_config_path, "regionId"
        load = BrokerConfig.load
    else:
        codes = RequestCode.GET_NAMESRV_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG
        port, file, harmless = name_server.port, name_server.config.config_store_path, "productEnvName"
    with contextlib.closing(Peer(port)) as peer:
        yield Attacked(peer, Path(file), *codes, harmless, load)


both_servers = pytest.mark.parametrize("attacked", ["broker", "name server"], indirect=True)


@pytest.mark.parametrize(("attacked", "key"), CASES, indirect=["attacked"])
@pytest.mark.parametrize(
    "form",
    [
        "{key}={value}\n{harmless}=changed",
        "{harmless}=changed\n{key} : {value}",
        "{escaped}={value}",
        "{key}\\\n={value}",
        "{key}={harmless}\n{key}={value}\n{harmless}=changed",
        "# a comment\r{key} {value}",
        "  \t{key}\t=\t{value}",
        "{key}\\u0020={value}",
        "\\u0020{key}={value}",
        "{key}\\ ={value}",
        "{harmless}=changed\n{key}\\t\\n={value}",
        "\\ufeff{key}={value}",
        "{key}\\u00a0={value}",
        "{key}\\u0000={value}",
    ],
    ids=[
        "first",
        "last",
        "escaped",
        "over two lines",
        "twice",
        "behind a comment",
        "blanks",
        "a blank behind",
        "a blank before",
        "an escaped blank",
        "a tab and a line",
        "a byte order mark",
        "another blank",
        "a NUL",
    ],
)
def test_what_names_a_place_is_refused_in_every_form(attacked, key, form):
    before, on_disk = attacked.config(), attacked.file.read_bytes()
    escaped = f"\\u{ord(key[0]):04x}{key[1:]}"
    body = form.format(key=key, value=EVIL, escaped=escaped, harmless=attacked.harmless)
    answer = attacked.change(body)
    assert answer.code in (ResponseCode.NO_PERMISSION, ResponseCode.SYSTEM_ERROR), answer
    assert attacked.config() == before
    assert attacked.file.read_bytes() == on_disk


@both_servers
@pytest.mark.parametrize(
    "value",
    [
        "x\\nkvConfigPath=/tmp/evil\\nrocketmqHome=/tmp/evil\\nmyOwnKey=9",
        "x\\rkvConfigPath=/tmp/evil",
        "x\\u000akvConfigPath\\u003d/tmp/evil\\u000d\\u000arocketmqHome=/tmp/evil",
        "x\\\\",
        "\\ x",
    ],
)
def test_a_value_brings_no_key_along(attacked, value):
    """What is kept in the file is read back at the next start as it was: one value, of one key."""
    before = attacked.load(attacked.file)
    for key in (attacked.harmless, "myOwnKey"):
        assert attacked.change(f"{key}={value}").code == ResponseCode.SUCCESS
    lines = [
        line for line in attacked.config().splitlines() if line.startswith(("kvConfigPath=", "rocketmqHome="))
    ]
    assert not any("evil" in line for line in lines)
    after = attacked.load(attacked.file)
    if isinstance(after, NameServerConfig) and isinstance(before, NameServerConfig):
        assert after.kv_config_path == before.kv_config_path
        assert after.rocketmq_home == before.rocketmq_home
    assert "evil" not in "".join(key for key in after.others)
    assert after.others["myOwnKey"].startswith(("x", " x"))
    assert attacked.change("myOwnKey=1").code == ResponseCode.SUCCESS


@both_servers
def test_a_file_that_only_its_owner_reads_stays_so(attacked):
    """There may be secrets in it; so there are in what it was before."""
    assert attacked.change(f"{attacked.harmless}=quiet").code == ResponseCode.SUCCESS
    for file in (attacked.file, attacked.file.with_name(attacked.file.name + ".bak")):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


@both_servers
def test_no_secret_is_logged_or_shown(attacked, caplog):
    caplog.set_level(logging.DEBUG)
    answer = attacked.change('initAuthenticationUser={"username":"x","password":"just-tried"}')
    assert answer.code == ResponseCode.NO_PERMISSION
    assert "just-tried" not in caplog.text
    assert SECRET not in attacked.config()
