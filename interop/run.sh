#!/bin/sh
# usage: run.sh StoreDump|StoreWrite|Interop|Mqadmin|SqlFilter|Allocate|TraceDecode|ClientBench|Services|Access|Headers|Pop|PopCalls ARGS...
#        run.sh namesrv|broker -c CONF        start a real server in the foreground
#        run.sh proxy -pc CONF                and the real proxy
#        run.sh fetch                         only get the jars
#        run.sh compile                       only get the jars and compile
#
# Jars: $ROCKETMQ_LIB (a directory of jars) if set, else target/lib, filled by Maven on the first run.
# Classes go to $INTEROP_CLASSES (default target/classes), logs to $INTEROP_HOME (default target/home),
# private copies of stores to $TMPDIR. JAVA_OPTS is passed on.
set -e
here=$(cd "$(dirname "$0")" && pwd)
lib=${ROCKETMQ_LIB:-$here/target/lib}
classes=${INTEROP_CLASSES:-$here/target/classes}
home=${INTEROP_HOME:-$here/target/home}

fetch() {
    [ -z "$ROCKETMQ_LIB" ] || return 0
    # The stamp is written last, so that an interrupted download does not count as a whole one.
    if [ ! -f "$lib/.complete" ] || [ "$here/pom.xml" -nt "$lib/.complete" ]; then
        (cd "$here" && mvn -q -B dependency:copy-dependencies) >&2
        touch "$lib/.complete"
    fi
}

compile() {
    mkdir -p "$classes"
    for name in StoreDump StoreWrite Interop Mqadmin SqlFilter Allocate TraceDecode ClientBench Services Access Headers Pop PopCalls; do
        if [ ! -f "$classes/$name.class" ] || [ "$here/$name.java" -nt "$classes/$name.class" ]; then
            javac -nowarn -Xlint:-options -encoding UTF-8 -cp "$classes:$lib/*" -d "$classes" "$here/$name.java" >&2
        fi
    done
}

if [ $# -eq 0 ]; then
    sed -n '2,6s/^# //p' "$0" >&2
    exit 2
fi
fetch
[ "$1" != fetch ] || exit 0
compile
[ "$1" != compile ] || exit 0

main=$1
shift
case $main in
    namesrv) main=org.apache.rocketmq.namesrv.NamesrvStartup ;;
    broker) main=org.apache.rocketmq.broker.BrokerStartup ;;
    proxy) main=org.apache.rocketmq.proxy.ProxyStartup ;;
esac
mkdir -p "$home"
exec java ${JAVA_OPTS:--Xmx512m} -XX:+UseSerialGC \
    --add-opens java.base/java.lang=ALL-UNNAMED --add-opens java.base/java.nio=ALL-UNNAMED \
    --add-opens java.base/java.util=ALL-UNNAMED --add-opens java.base/sun.nio.ch=ALL-UNNAMED \
    --add-exports java.base/jdk.internal.ref=ALL-UNNAMED \
    -Dfile.encoding=UTF-8 -Djava.io.tmpdir="${TMPDIR:-/tmp}" \
    -Duser.home="$home" -Drocketmq.home.dir="$home" \
    -cp "$classes:$lib/*" "$main" "$@"
