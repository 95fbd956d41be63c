"""TLS and access keys: the options of the connection, against servers that insist on them."""

from __future__ import annotations

import dataclasses

import pytest

from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.headers import CreateTopic
from kourou.spark.channel import NetSettings, call, close_channels
from support.java import java
from support.sites.certificates import Authority, needs_openssl
from support.sites.servers import HOST, java_broker, java_name_server, kourou, read_conf, write_broker_conf
from support.spark import bodies_of

TOPIC = "guarded"


def create_topic(address, settings):
    header = CreateTopic(TOPIC, "TBW102", 2, 2, 6, "SINGLE_TAG")
    call(address, settings, RequestCode.UPDATE_AND_CREATE_TOPIC, header.fields(), "a topic")


def round_trip(spark, namesrv, **options):
    """Write and read a topic."""
    frame = spark.range(50).selectExpr("concat('m ', lpad(id, 2, '0')) AS body")
    frame.write.format("rocketmq").mode("append").options(namesrv=namesrv, topic=TOPIC, **options).save()
    reader = spark.read.format("rocketmq").options(namesrv=namesrv, topic=TOPIC, **options)
    return bodies_of(reader.load())


@needs_openssl
def test_tls(spark, tmp_path):
    from kourou.remoting.tls import TlsConfig

    signer = Authority(tmp_path, "spark")
    server = signer.sign("server")
    tls = tmp_path / "tls.properties"
    tls.write_text(
        f"tls.server.mode=enforcing\ntls.server.certPath={server.cert}\ntls.server.keyPath={server.key}\n"
        f"tls.client.authServer=true\ntls.client.trustCertPath={signer.cert}\ntls.enable=true\n"
    )
    namesrv_conf = tmp_path / "namesrv.conf"
    namesrv_conf.write_text(f"kvConfigPath={tmp_path}/kvConfig.json\n")
    with kourou(
        "namesrv", "-c", str(namesrv_conf), "--port", "0", "--host", HOST, "--tls", str(tls)
    ) as name_server:
        conf = write_broker_conf(tmp_path, name_server.port, {"bindAddress": HOST})
        with kourou("broker", "-c", str(conf), "--tls", str(tls)) as broker:
            settings = NetSettings(tls=dataclasses.replace(TlsConfig.load(tls), enable=True))
            create_topic(f"{HOST}:{read_conf(conf)['listenPort']}", settings)
            assert broker.process.poll() is None

            assert round_trip(spark, name_server.address, tlsConfig=str(tls)) == [
                b"m %02d" % n for n in range(50)
            ]
            with pytest.raises(Exception, match="no name server answers"):
                round_trip(spark, name_server.address, fetchRetries="0", requestTimeout="2s")
    close_channels()


@pytest.mark.interop
def test_access_keys(spark, tmp_path):
    java()
    auth = "org.apache.rocketmq.auth.authentication.provider"
    more = {
        "authenticationEnabled": "true",
        "authenticationProvider": f"{auth}.DefaultAuthenticationProvider",
        "authenticationMetadataProvider": f"{auth}.LocalAuthenticationMetadataProvider",
        "initAuthenticationUser": '{"username":"admin","password":"12345678"}',
        "innerClientAuthenticationCredentials": '{"accessKey":"admin","secretKey":"12345678"}',
        "authConfigPath": tmp_path / "auth",
    }
    with java_name_server(tmp_path) as name_server, java_broker(tmp_path, name_server.port, more) as broker:
        create_topic(broker.address, NetSettings(access_key="admin", secret_key="12345678"))
        keys = {"accessKey": "admin", "secretKey": "12345678"}

        assert round_trip(spark, name_server.address, **keys) == [b"m %02d" % n for n in range(50)]
        with pytest.raises(Exception, match="refused"):
            round_trip(spark, name_server.address, accessKey="admin", secretKey="wrong", fetchRetries="0")
    close_channels()
