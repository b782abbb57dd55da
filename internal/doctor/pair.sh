#!/usr/bin/env bash
#
# Tests paths between workers. It changes nothing, needs no permissions, and leaves nothing
# behind. The listener ends when its standard input ends, and after LIMIT seconds at the
# latest.
#
#   listen ADDRESS HOLD LIMIT PORT...
#                                    accepts and closes connections, and sends UDP
#                                    packets to the first port back
#   probe LIMIT SIZE TARGET...       each TARGET is NAME=ADDRESS[:PORT,PORT...];
#                                    sends a packet of SIZE bytes there that must
#                                    not be fragmented; with SIZE 0 it connects to
#                                    the ports instead
#
# A run listens on the same ports. So the listener does not open them while a run holds the
# lock of the worker. It closes them at the first line of input, when a run takes the lock,
# or after HOLD seconds. The UDP port stays open, because no run uses UDP there.
#
# Lines of the answer, with fields separated by tabs:
#   busy | listening PORT | taken PORT REASON | ready
#   closed told|run|limit
#   tcp NAME PORT ok|refused|timeout|REASON
#   size NAME ok|small MTU|lost|silent|unknown WHY
#   end
#
# shellcheck disable=SC2154 # the prelude sets nonce

tab=$'\t'

listener='
import fcntl, os, select, socket, sys, time

def say(*words):
    print(nonce, words[0], "\t".join(words[1:]), flush=True)

nonce, lock, address, hold, limit, ports = *sys.argv[1:4], float(sys.argv[4]), float(sys.argv[5]), sys.argv[6:]

def busy():
    try:
        f = os.open(lock, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(f, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(f)
    return False

if busy():
    say("busy")
    say("end")
    sys.exit()
begin = time.monotonic()
accepting = []

def let_go(why):
    for s in accepting:
        s.close()
    del accepting[:]
    say("closed", why)

for port in ports:
    s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        s.bind((address, int(port)))
        s.listen(128)
    except OSError as e:
        say("taken", port, e.strerror or str(e))
        continue
    accepting.append(s)
    say("listening", port)
echo = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
try:
    echo.bind((address, int(ports[0])))
except OSError:
    pass
say("ready")
while time.monotonic() < begin + limit:
    readable, _, _ = select.select(accepting + [echo, sys.stdin], [], [], 0.2)
    if sys.stdin in readable:
        if not sys.stdin.buffer.raw.read(4096):
            break
        if accepting:
            let_go("told")
    elif accepting and time.monotonic() > begin + hold:
        let_go("limit")
    elif accepting and busy():
        let_go("run")
    for s in readable:
        try:
            if s in accepting:
                s.accept()[0].close()
            elif s is echo:
                data, sender = echo.recvfrom(65536)
                echo.sendto(data, sender)
        except OSError:
            pass
'

# sender sends a UDP packet that must not be fragmented, and waits until it comes
# back. In Linux, 10 is IP_MTU_DISCOVER, 2 is IP_PMTUDISC_DO, and 14 is IP_MTU.
sender='
import errno, socket, sys

address, port, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IP, 10, 2)
s.settimeout(1)
s.connect((address, port))

def passes(n):
    for _ in range(3):
        try:
            s.send(b"x" * n)
            if len(s.recv(65536)) == n:
                return True
        except socket.timeout:
            pass
        except OSError as e:
            if e.errno == errno.EMSGSIZE:
                print("small\t%d" % s.getsockopt(socket.IPPROTO_IP, 14))
                sys.exit()
            return False
    return False

if passes(size - 28):
    print("ok")
elif passes(8):
    print("lost")
else:
    print("silent")
'

# connect NAME ADDRESS PORT
connect() {
  local out rc
  # shellcheck disable=SC2016 # for the inner shell
  out=$(timeout -k 1 "$limit" bash -c 'exec 3<>"/dev/tcp/$1/$2"' connect "$2" "$3" 2>&1)
  rc=$?
  case $rc:$out in
    0:*) say_fields tcp "$1" "$3" ok ;;
    124:* | 137:*) say_fields tcp "$1" "$3" timeout ;;
    *refused*) say_fields tcp "$1" "$3" refused ;;
    *) say_fields tcp "$1" "$3" "${out##*: }" ;;
  esac
}

# ping_size NAME ADDRESS: tests the packet size with ping. It fails without a result of
# ping.
ping_size() {
  local out
  have ping || return 1
  if out=$(timeout -k 1 "$limit" ping -n -M 'do' -c 3 -i 0.3 -W 1 -s "$((size - 28))" "$2" 2>&1); then
    say_fields size "$1" ok
    return
  fi
  if [[ $out =~ mtu\ ?=\ ?([0-9]+) ]]; then
    say_fields size "$1" small "${BASH_REMATCH[1]}"
  elif [[ $out == *ermitted* || $out == *socket* || $out == *nvalid* || $out == *sage:* ]]; then
    return 1
  elif timeout -k 1 "$limit" ping -n -c 3 -i 0.3 -W 1 "$2" >/dev/null 2>&1; then
    say_fields size "$1" lost
  else
    return 1 # a firewall may drop echo requests
  fi
}

# udp_size NAME ADDRESS PORT
udp_size() {
  local out word mtu
  if [[ -z $3 ]]; then
    say_fields size "$1" unknown "no answer to ping"
  elif ! have python3; then
    say_fields size "$1" unknown "neither ping nor python3 can be used"
  else
    out=$(timeout -k 1 "$((limit * 2))" python3 -I -S -c "$sender" "$2" "$3" "$size" 2>/dev/null)
    IFS=$tab read -r word mtu <<<"${out:-unknown}"
    say_fields size "$1" "$word" ${mtu:+"$mtu"}
  fi
}

probe() {
  limit=$1 size=$2
  shift 2
  local target name address port
  local -a ports
  for target; do
    name=${target%%=*} address=${target#*=}
    ports=()
    if [[ $address == *:* ]]; then
      IFS=, read -r -a ports <<<"${address#*:}"
      address=${address%%:*}
    fi
    if ((size > 0)); then
      { ping_size "$name" "$address" || udp_size "$name" "$address" "${ports[0]-}"; } &
      continue
    fi
    for port in "${ports[@]}"; do
      connect "$name" "$address" "$port" &
    done
  done
  wait
}

role=$1
shift
case $role in
  listen)
    if have python3; then
      # The listener only reads the lock of package launch. It never creates the lock.
      exec python3 -I -S -u -c "$listener" "$nonce" "${MULTIHOST_ROOT_TMP-}/tmp/.multihost/lock" "$@"
    fi
    say_fields taken "" "python3 is not installed"
    ;;
  probe) probe "$@" </dev/null ;;
esac
say end
