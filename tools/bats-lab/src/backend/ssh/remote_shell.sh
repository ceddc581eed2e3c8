# Runs on a host of a testbed during a measurement and reads commands, one per line. However the
# connection ends, it terminates the started programs and removes the directory.
umask 077
folder=$(mktemp -d "${TMPDIR:-/tmp}/batslab-XXXXXXXXXX") || exit 1
signal_all() {
    [ -f "$folder/pids" ] || return 0
    while read -r pid; do
        kill "-$1" "-$pid" 2>/dev/null || kill "-$1" "$pid" 2>/dev/null
    done <"$folder/pids"
}
some_run() {
    [ -f "$folder/pids" ] || return 1
    while read -r pid; do
        kill -0 "$pid" 2>/dev/null && return 0
    done <"$folder/pids"
    return 1
}
end_all() {
    signal_all TERM
    for round in 1 2 3 4 5 6 7 8 9 10; do
        some_run || break
        sleep 0.2
    done
    signal_all KILL
    rm -f "$folder/pids"
}
trap 'end_all; rm -rf "$folder"' EXIT
trap 'exit 1' HUP INT TERM PIPE
echo "folder $folder"
echo "arch $(uname -m)"
while read -r command word; do
    case $command in
    program) command -v "$word" >/dev/null || echo "missing $word" ;;
    interface) test -e "/sys/class/net/$word" || echo "missing interface $word" ;;
    congestion)
        # Root may use all available algorithms, and their modules are loaded on demand.
        if [ "$(id -u)" -eq 0 ]; then which=available; else which=allowed; fi
        case " $(cat "/proc/sys/net/ipv4/tcp_${which}_congestion_control") " in
        *" $word "*) ;;
        *)
            [ "$which" = available ] && modprobe -n -q "tcp_$word" 2>/dev/null ||
                echo "missing $word in net.ipv4.tcp_${which}_congestion_control"
            ;;
        esac
        ;;
    clock) echo "clock $(date +%s.%N)" ;;
    settle) end_all ;;
    esac
    echo "done $command"
done
