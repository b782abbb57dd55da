#!/usr/bin/env python3
"""Trains a small character model on all workers of all slices.

The program stands in for a real training job where there is no accelerator. It
needs nothing but Python 3.8 and a text, and it does for real what such a job
does: each process works on its own shard of the text, gradients are averaged
over TCP between the workers' own addresses, and every process ends with the
same weights, bit for bit.

Started by multihost it finds its place in MULTIHOST_PROCESS_ID,
MULTIHOST_NUM_PROCESSES, MULTIHOST_COORDINATOR_IP and MULTIHOST_WORKER_IP.
Started alone it trains in one process.
"""

import argparse
import array
import faulthandler
import hashlib
import itertools
import json
import math
import operator
import os
import random
import select
import signal
import socket
import struct
import sys
import time

CONTEXT = 3  # characters that predict the next one
HIDDEN = 32
DEFAULT_PORT = 8476

EXIT_PEER = 1  # another process was lost or never connected


class PeerError(Exception):
    """Another process cannot be reached, is lost, or is not one of ours."""


# --- the model ---------------------------------------------------------------


class Model:
    """Next-character model: one table a context position, tanh, softmax.

    All weights lie in one flat list, so that gradients can be averaged as one
    vector; the tables are views by offset.
    """

    def __init__(self, vocabulary, seed):
        self.vocabulary = vocabulary
        self.hidden_bias = CONTEXT * vocabulary * HIDDEN
        self.output = self.hidden_bias + HIDDEN
        self.output_bias = self.output + vocabulary * HIDDEN
        self.size = self.output_bias + vocabulary
        # The arithmetic of uniform is exact, unlike gauss, so machines with different math
        # libraries start with the same weights.
        rng = random.Random(seed)
        self.weights = [rng.uniform(-0.1, 0.1) for _ in range(self.size)]
        self.first_moment = [0.0] * self.size
        self.second_moment = [0.0] * self.size
        self.beta1_power = 1.0
        self.beta2_power = 1.0

    def flops_per_token(self):
        """Floating point operations of the matrix products and table sums,
        forward and backward, as training frameworks count them."""
        forward = 2 * self.vocabulary * HIDDEN + CONTEXT * HIDDEN
        return 3 * forward

    def gradient(self, batch):
        """Returns the summed gradient and the summed loss of the batch, a list
        of (context, target)."""
        w = self.weights
        vocabulary = self.vocabulary
        grad = [0.0] * self.size
        rows = [
            w[self.output + v * HIDDEN : self.output + (v + 1) * HIDDEN]
            for v in range(vocabulary)
        ]
        row_grads = [[0.0] * HIDDEN for _ in range(vocabulary)]
        bias = w[self.output_bias :]
        loss = 0.0
        for context, target in batch:
            offsets = [
                (i * vocabulary + c) * HIDDEN for i, c in enumerate(context)
            ]
            pre = w[self.hidden_bias : self.output]
            for o in offsets:
                pre = list(map(operator.add, pre, w[o : o + HIDDEN]))
            hidden = list(map(math.tanh, pre))
            logits = [
                b + sum(map(operator.mul, row, hidden))
                for b, row in zip(bias, rows)
            ]
            top = max(logits)
            exps = [math.exp(x - top) for x in logits]
            total = sum(exps)
            loss += math.log(total) - (logits[target] - top)
            delta = [e / total for e in exps]
            delta[target] -= 1.0

            back = [0.0] * HIDDEN
            for v, d in enumerate(delta):
                back = [a + d * x for a, x in zip(back, rows[v])]
                row_grads[v] = [a + d * h for a, h in zip(row_grads[v], hidden)]
                grad[self.output_bias + v] += d
            back = [b * (1.0 - h * h) for b, h in zip(back, hidden)]
            for o in offsets + [self.hidden_bias]:
                grad[o : o + HIDDEN] = map(
                    operator.add, grad[o : o + HIDDEN], back
                )
        grad[self.output : self.output_bias] = itertools.chain.from_iterable(
            row_grads
        )
        return grad, loss

    def update(self, grad, rate):
        """One step of Adam. Only exactly rounded operations are used: equal
        gradients keep the weights of all machines equal, bit for bit."""
        beta1, beta2 = 0.9, 0.99
        self.beta1_power *= beta1
        self.beta2_power *= beta2
        scale1 = rate / (1.0 - self.beta1_power)
        scale2 = 1.0 / (1.0 - self.beta2_power)
        m = [beta1 * a + (1.0 - beta1) * g for a, g in zip(self.first_moment, grad)]
        s = [
            beta2 * a + (1.0 - beta2) * g * g
            for a, g in zip(self.second_moment, grad)
        ]
        self.first_moment, self.second_moment = m, s
        self.weights = [
            x - scale1 * a / (math.sqrt(b * scale2) + 1e-8)
            for x, a, b in zip(self.weights, m, s)
        ]

    def state(self):
        """Everything that a later step depends on, as one vector."""
        return self.weights + self.first_moment + self.second_moment + [self.beta1_power, self.beta2_power]

    def restore(self, state):
        n = self.size
        self.weights, self.first_moment, self.second_moment = state[:n], state[n : 2 * n], state[2 * n : 3 * n]
        self.beta1_power, self.beta2_power = state[3 * n :]

    def digest(self):
        return hashlib.sha256(pack(self.weights)).hexdigest()


# --- the network -------------------------------------------------------------


def pack(numbers):
    values = array.array("d", numbers)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def unpack(data):
    values = array.array("d")
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def send_message(sock, value):
    data = json.dumps(value).encode()
    sock.sendall(struct.pack(">I", len(data)) + data)


def receive_message(sock):
    data = receive_exactly(sock, 4)
    (size,) = struct.unpack(">I", data)
    if size > 1 << 20:
        raise ValueError("message of %d bytes" % size)
    value = json.loads(receive_exactly(sock, size).decode())
    if not isinstance(value, dict):
        raise ValueError("message is not an object")
    return value


def receive_exactly(sock, size):
    parts = []
    while size > 0:
        part = sock.recv(min(size, 1 << 20))
        if not part:
            raise ConnectionError("connection closed")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def family(ip):
    return socket.AF_INET6 if ":" in ip else socket.AF_INET


def listen(ip, port, backlog):
    sock = socket.socket(family(ip), socket.SOCK_STREAM)
    try:
        # A port in TIME_WAIT from an earlier attempt must not prevent this.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((ip, port))
        sock.listen(backlog)
    except OSError as err:
        sock.close()
        raise PeerError("listen on %s port %d: %s" % (ip, port, err))
    return sock


class Ring:
    """The processes of a run, each connected to the next one.

    Process 0 listens where everybody knows; the others tell it their own
    address and get the list of all. After that data goes directly from worker
    to worker.
    """

    def __init__(self, place, fingerprint, port, connect_timeout, timeout):
        self.id, self.count = place.process, place.processes
        self.timeout = timeout
        self.left = self.right = None
        if self.count == 1:
            return
        self.hello = {
            "run": place.run,
            "fingerprint": fingerprint,
            "processes": self.count,
            "process": self.id,
        }
        deadline = time.monotonic() + connect_timeout
        own = place.worker_ip
        server = listen(own, 0, 16)
        try:
            me = [own, server.getsockname()[1]]
            if self.id == 0:
                self.addresses = self.gather(me, port, deadline)
            else:
                self.addresses = self.join(me, place.coordinator_ip, port, deadline)
            self.connect(server, own, deadline)
        finally:
            server.close()

    def name(self, process):
        return "process %d (%s)" % (process, self.addresses[process][0])

    def same_run(self, hello):
        return all(
            hello.get(key) == self.hello[key]
            for key in ("run", "fingerprint", "processes")
        )

    def gather(self, me, port, deadline):
        """Process 0: waits for every other process, then tells all."""
        server = listen(me[0], port, self.count + 16)
        addresses = {0: me}
        waiting = {}
        try:
            while len(addresses) < self.count:
                left = deadline - time.monotonic()
                if left <= 0:
                    missing = [p for p in range(self.count) if p not in addresses]
                    raise PeerError(
                        "process %s did not connect to %s port %d in time"
                        % (", ".join(map(str, missing)), me[0], port)
                    )
                server.settimeout(left)
                try:
                    sock, _ = server.accept()
                except socket.timeout:
                    continue
                # A client that connects without saying who it is must not delay the
                # others for long.
                sock.settimeout(min(5.0, max(left, 0.1)))
                try:
                    hello = receive_message(sock)
                    process = hello.get("process")
                    if not self.same_run(hello):
                        send_message(
                            sock,
                            {"error": "another run, text or number of processes", "run": self.hello["run"]},
                        )
                        sock.close()
                        continue
                    if not isinstance(process, int) or not 0 < process < self.count:
                        raise ValueError("process %r" % (process,))
                    ip, peer_port = hello["address"]
                except (OSError, ValueError, KeyError, TypeError):
                    sock.close()
                    continue
                if process in waiting:
                    waiting[process].close()
                waiting[process] = sock
                addresses[process] = [str(ip), int(peer_port)]
            table = [addresses[p] for p in range(self.count)]
            for process, sock in waiting.items():
                try:
                    send_message(sock, {"addresses": table})
                except OSError as err:
                    raise PeerError(
                        "lost process %d (%s) while starting: %s"
                        % (process, table[process][0], err)
                    )
            return table
        finally:
            server.close()
            for sock in waiting.values():
                sock.close()

    def join(self, me, coordinator, port, deadline):
        """The others: retry, because workers do not start at one moment."""
        why = None
        pause = 0.05
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise PeerError(
                    "connect to process 0 at %s port %d: %s" % (coordinator, port, why)
                )
            try:
                sock = socket.create_connection(
                    (coordinator, port), timeout=min(left, 10.0), source_address=(me[0], 0)
                )
                with sock:
                    # Process 0 answers once the last process has connected.
                    sock.settimeout(max(deadline - time.monotonic(), 0.1))
                    send_message(sock, dict(self.hello, address=me))
                    answer = receive_message(sock)
                if "addresses" in answer:
                    return [(str(ip), int(p)) for ip, p in answer["addresses"]]
                why = answer.get("error")
            except (OSError, ValueError) as err:
                why = err
            time.sleep(pause)
            pause = min(pause * 1.5, 1.0)

    def connect(self, server, own, deadline):
        """Connects to the next process and takes the call of the one before."""
        to, frm = (self.id + 1) % self.count, (self.id - 1) % self.count
        try:
            self.right = socket.create_connection(
                tuple(self.addresses[to]),
                timeout=max(deadline - time.monotonic(), 0.1),
                source_address=(own, 0),
            )
            send_message(self.right, self.hello)
        except OSError as err:
            raise PeerError("connect to %s: %s" % (self.name(to), err))
        while self.left is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise PeerError("%s did not connect in time" % self.name(frm))
            server.settimeout(left)
            try:
                sock, _ = server.accept()
            except socket.timeout:
                continue
            sock.settimeout(min(5.0, left))
            try:
                hello = receive_message(sock)
                if self.same_run(hello) and hello.get("process") == frm:
                    self.left = sock
                    continue
            except (OSError, ValueError):
                pass
            sock.close()
        for sock in (self.left, self.right):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setblocking(False)

    def exchange(self, data, size):
        """Sends data to the next process while taking size bytes from the one
        before: doing one after the other would block when buffers are full."""
        to, frm = (self.id + 1) % self.count, (self.id - 1) % self.count
        out, parts = memoryview(data), []
        deadline = time.monotonic() + self.timeout
        while out or size > 0:
            left = deadline - time.monotonic()
            if left <= 0:
                late = frm if size > 0 else to
                raise PeerError(
                    "no answer from %s for %g s" % (self.name(late), self.timeout)
                )
            readable, writable, _ = select.select(
                [self.left] if size > 0 else [], [self.right] if out else [], [], left
            )
            if readable:
                try:
                    part = self.left.recv(min(size, 1 << 18))
                except BlockingIOError:
                    continue
                except OSError as err:
                    raise PeerError("lost %s: %s" % (self.name(frm), err))
                if not part:
                    raise PeerError("lost %s: it closed the connection" % self.name(frm))
                parts.append(part)
                size -= len(part)
            if writable:
                try:
                    out = out[self.right.send(out) :]
                except BlockingIOError:
                    pass
                except OSError as err:
                    raise PeerError("lost %s: %s" % (self.name(to), err))
        return b"".join(parts)

    def sum(self, numbers):
        """The element-wise sum over all processes, the same bits on each.

        A ring all-reduce: the vector is cut into one part a process. A part is
        added up on its way round the ring, always in the same order, by one
        process at a time, and the finished part is then copied round.
        """
        n = self.count
        if n == 1:
            return numbers
        border = [len(numbers) * i // n for i in range(n + 1)]
        parts = [list(numbers[border[i] : border[i + 1]]) for i in range(n)]
        for step in range(n - 1):
            mine, theirs = (self.id - step) % n, (self.id - step - 1) % n
            data = self.exchange(pack(parts[mine]), 8 * len(parts[theirs]))
            parts[theirs] = list(map(operator.add, unpack(data), parts[theirs]))
        for step in range(n - 1):
            mine, theirs = (self.id + 1 - step) % n, (self.id - step) % n
            data = self.exchange(pack(parts[mine]), 8 * len(parts[theirs]))
            parts[theirs] = unpack(data).tolist()
        return list(itertools.chain.from_iterable(parts))

    def close(self):
        for sock in (self.left, self.right):
            if sock is not None:
                sock.close()


# --- checkpoints -------------------------------------------------------------


class Checkpoint:
    """The newest state of a training, in one file that is replaced whole.

    Process 0 reads and writes it, as all hold the same weights; the others get
    it from there, so the directory need not be shared. It has to outlive the
    machine of process 0 to help after a preemption: a mounted bucket does.
    """

    def __init__(self, directory, training):
        self.path = os.path.join(directory, "checkpoint")
        self.training = training  # the options for which the checkpoint was made
        os.makedirs(directory, exist_ok=True)

    def load(self):
        """Returns (steps done, state), (0, None) where there is none."""
        try:
            with open(self.path, "rb") as f:
                head, state = json.loads(f.readline()), f.read()
        except FileNotFoundError:
            return 0, None
        if head["training"] != self.training:
            raise ValueError("%s is of another training: other text, batch, learning rate or seed" % self.path)
        if hashlib.sha256(state).hexdigest() != head["sha256"]:
            raise ValueError("%s is damaged" % self.path)
        return head["steps"], unpack(state).tolist()

    def save(self, steps, state):
        state = pack(state)
        head = {"training": self.training, "steps": steps, "sha256": hashlib.sha256(state).hexdigest()}
        new = "%s.%d.new" % (self.path, os.getpid())
        with open(new, "wb") as f:
            f.write(json.dumps(head).encode() + b"\n" + state)
            f.flush()
            os.fsync(f.fileno())
        os.replace(new, self.path)


def resume(checkpoint, model, place, ring):
    """Brings all processes to the step of the checkpoint of process 0, and
    returns it."""
    steps, state = checkpoint.load() if place.process == 0 else (0, None)
    # All other processes add zeros, so the sum is this process's numbers.
    numbers = ring.sum([float(steps)] + (state or [0.0] * len(model.state())))
    steps = int(numbers[0])
    if steps > 0:
        model.restore(numbers[1:])
        say("process %d goes on from step %d of its checkpoint" % (place.process, steps))
    return steps


# --- the program -------------------------------------------------------------


class Place:
    """Where this process stands among all, from the environment."""

    def __init__(self, env):
        def number(name, default):
            text = env.get(name, "")
            if text == "":
                return default
            try:
                return int(text)
            except ValueError:
                raise ValueError("%s=%r is not a number" % (name, text))

        self.processes = number("MULTIHOST_NUM_PROCESSES", 1)
        self.process = number("MULTIHOST_PROCESS_ID", 0)
        self.coordinator_ip = env.get("MULTIHOST_COORDINATOR_IP", "")
        self.worker_ip = env.get("MULTIHOST_WORKER_IP", "")
        self.run = "%s/%s" % (
            env.get("MULTIHOST_RUN", ""),
            env.get("MULTIHOST_ATTEMPT", ""),
        )
        if not 0 <= self.process < self.processes:
            raise ValueError(
                "MULTIHOST_PROCESS_ID=%d is not below MULTIHOST_NUM_PROCESSES=%d"
                % (self.process, self.processes)
            )
        if self.processes > 1 and not self.coordinator_ip:
            raise ValueError(
                "MULTIHOST_NUM_PROCESSES=%d needs MULTIHOST_COORDINATOR_IP"
                % self.processes
            )
        if self.processes > 1 and not self.worker_ip:
            self.worker_ip = self.guess_ip()

    def guess_ip(self):
        """The address that this machine uses towards the coordinator."""
        if self.process == 0:
            return self.coordinator_ip
        with socket.socket(family(self.coordinator_ip), socket.SOCK_DGRAM) as sock:
            sock.connect((self.coordinator_ip, 9))  # sends nothing
            return sock.getsockname()[0]


def parse_arguments():
    here = os.path.dirname(os.path.abspath(__file__))
    p = argparse.ArgumentParser(description="Train a small character model on all workers.")
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--batch", type=int, default=64, help="characters a process and step")
    p.add_argument("--learning-rate", type=float, default=0.02)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--checkpoint-dir", help="directory of the checkpoint of process 0; training goes on from it")
    p.add_argument("--checkpoint-every", type=int, default=10, help="steps from one checkpoint to the next")
    p.add_argument("--step-seconds", type=float, default=0.0, help="make a step last so long, to look at it")
    p.add_argument("--text", default=os.path.join(here, "declaration.txt"), help="UTF-8 text to learn")
    p.add_argument("--port", type=int, default=DEFAULT_PORT, help="port of process 0")
    p.add_argument("--connect-timeout", type=float, default=120.0, help="seconds until all processes must have met")
    p.add_argument("--timeout", type=float, default=60.0, help="seconds that a peer may be silent in a step")
    p.add_argument("--fail-at-step", type=int, help="fail at this step, to see what a failure looks like")
    p.add_argument("--fail-process", type=int, default=0, help="the process that --fail-at-step means")
    p.add_argument("--fail-code", type=int, default=7, help="its exit code")
    args = p.parse_args()
    if args.steps < 1 or args.batch < 1 or args.checkpoint_every < 1:
        p.error("--steps, --batch and --checkpoint-every must be at least 1")
    return args


def say(text):
    """One line, at once, in one write: other processes may share the file."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def complain(text):
    sys.stderr.write("error: %s\n" % text)
    sys.stderr.flush()


def train(args, place):
    with open(args.text, encoding="utf-8") as f:
        text = f.read()
    characters = sorted(set(text))
    codes = {c: i for i, c in enumerate(characters)}
    data = [codes[c] for c in text]
    model = Model(len(characters), args.seed)

    # This process's shard: the targets at positions begin … end-1.
    targets = len(data) - CONTEXT
    begin = CONTEXT + targets * place.process // place.processes
    end = CONTEXT + targets * (place.process + 1) // place.processes
    if begin >= end:
        raise ValueError("%s is too short for %d processes" % (args.text, place.processes))

    training = hashlib.sha256(repr((text, args.batch, args.learning_rate, args.seed)).encode()).hexdigest()
    fingerprint = "%s/%d/%d" % (training, args.steps, bool(args.checkpoint_dir))
    ring = Ring(place, fingerprint, args.port, args.connect_timeout, args.timeout)
    say(
        "process %d of %d: %d characters of %d, vocabulary %d, %d weights"
        % (place.process, place.processes, end - begin, len(data), len(characters), model.size)
    )

    flops = model.flops_per_token() * args.batch
    tokens = args.batch * place.processes
    spent = 0.0
    loss = math.nan
    first, checkpoint = 0, None
    if args.checkpoint_dir:
        checkpoint = Checkpoint(args.checkpoint_dir, training)
        first = resume(checkpoint, model, place, ring)
    for step in range(first, args.steps):
        started = time.monotonic()
        # Each step has a generator of its own, so that a resumed training draws the same
        # batches as one without an interruption.
        rng = random.Random("%d/%d/%d" % (args.seed, place.process, step))
        if step == args.fail_at_step and place.process == args.fail_process:
            complain("process %d fails at step %d, as asked by --fail-at-step" % (place.process, step))
            return args.fail_code
        batch = []
        for _ in range(args.batch):
            i = rng.randrange(begin, end)
            batch.append((data[i - CONTEXT : i], data[i]))
        grad, loss = model.gradient(batch)
        # The loss is summed together with the gradient, so that all processes have the
        # same.
        total = ring.sum(grad + [loss])
        loss = total.pop() / tokens
        model.update([g / tokens for g in total], args.learning_rate)
        time.sleep(max(started + args.step_seconds - time.monotonic(), 0.0))
        seconds = max(time.monotonic() - started, 1e-9)
        spent += seconds
        say(
            "completed step: %d, seconds: %.3f, TFLOP/s/device: %.3f, Tokens/s/device: %.3f, "
            "total_weights: %d, loss: %.3f, lm_loss: %.3f, perplexity: %.3f"
            % (step, seconds, flops / seconds / 1e12, args.batch / seconds, tokens, loss, loss, math.exp(loss))
        )
        done = step + 1
        if checkpoint and place.process == 0 and (done % args.checkpoint_every == 0 or done == args.steps):
            checkpoint.save(done, model.state())
    ring.close()
    say(
        "process %d: %d steps, %.3f MFLOP/s, loss %r, weights sha256:%s"
        % (place.process, args.steps, flops * max(args.steps - first, 0) / max(spent, 1e-9) / 1e6, loss, model.digest())
    )
    return 0


def main():
    # multihost dump sends this signal to ask where a run is.
    faulthandler.register(signal.SIGUSR1)
    args = parse_arguments()
    try:
        place = Place(os.environ)
        return train(args, place)
    except PeerError as err:
        complain(err)
        # The process that failed first exits at once. Those that only noticed the failure
        # exit a moment later, so that a reader of the logs can tell cause from effect.
        time.sleep(3.0)
        return EXIT_PEER
    except (OSError, ValueError) as err:
        complain(err)
        return 2


if __name__ == "__main__":
    sys.exit(main())
