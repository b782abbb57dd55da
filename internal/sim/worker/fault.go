package worker

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A FaultKind is a way for a machine to misbehave. The comments on the constants give the
// arguments of the text form; those in brackets are optional.
type FaultKind string

// The faults. Without an optional DURATION, the fault stays active until it is cleared.
const (
	// "clear [KIND]" ends the fault of that kind, or all.
	Clear FaultKind = "clear"

	// "unreachable refuse|hang [DURATION]". refuse: the machine refuses new connections and
	// resets existing ones. hang: attempts to connect get no answer at all, and existing
	// connections fall silent.
	Unreachable FaultKind = "unreachable"

	// "freeze [DURATION]": the machine accepts connections but answers nothing, not even
	// keepalives, and existing connections fall silent. When the fault ends, data on its
	// way is delivered.
	Freeze FaultKind = "freeze"

	// "slow handshake|exec DURATION": each SSH handshake, or each start of a command,
	// takes that much longer.
	Slow FaultKind = "slow"

	// "cut in|out BYTES [TIMES]": a connection is reset after that many bytes in one
	// direction, seen from the machine. SSH's own bytes count. The count begins now for
	// existing connections, and at the start for later ones. This happens TIMES times, or
	// to every connection.
	Cut FaultKind = "cut"

	// "refuse-auth DURATION|TRIES": the machine accepts no key for that time, or on that
	// many connections, like one that has not received its keys yet.
	RefuseAuth FaultKind = "refuse-auth"

	// "reboot [power] [DURATION]" reboots once. The machine refuses connections for that
	// time. Its shutdown script runs first, except with power, a power failure. SetFault
	// returns when the machine is down.
	Reboot FaultKind = "reboot"

	// "no-sudo [missing]": sudo asks for a password. With missing, sudo does not exist.
	// Netns backend only.
	NoSudo FaultKind = "no-sudo"

	// "disk-space home|tmp [BYTES]": only that many bytes, or none, are free on the disk of
	// the homes or in /tmp. When the fault ends, files written to homes meanwhile are lost.
	// Netns backend only.
	DiskSpace FaultKind = "disk-space"

	// "read-only": nobody can write to the homes. Netns backend only.
	ReadOnly FaultKind = "read-only"

	// "clock ahead|behind DURATION": processes started from now on see a wrong clock. Needs
	// libfaketime.
	Clock FaultKind = "clock"

	// "startup print|exit|hang [FILE]": a start-up file of the login prints, exits with
	// status 3, or waits for the end of its input. FILE is ~/.bashrc, or on the netns
	// backend also /etc/bash.bashrc or ~/.ssh/rc.
	Startup FaultKind = "startup"

	// "banner": sshd shows a banner before each login, and there is a message of the day.
	Banner FaultKind = "banner"

	// "shell PATH" replaces bash as the shell of every login.
	Shell FaultKind = "shell"

	// "missing NAME": a setting does not exist. NAME is a sysctl key
	// ("net.ipv4.tcp_mtu_probing"), an absolute path below /proc/sys, /sys or /dev, or a
	// kernel module ("tcp_cubic"). On the process backend, NAME may also be numactl or
	// ethtool, because images may lack these programs. The program stays missing, even
	// after reboots, until apt-get installs it.
	Missing FaultKind = "missing"

	// "denied NAME": the command for a setting may not change it. NAME is a sysctl key,
	// "ip-route", "ip-link", or "ethtool".
	Denied FaultKind = "denied"

	// "fixed FEATURE": an ethtool feature cannot be changed.
	Fixed FaultKind = "fixed"

	// "rotate-host-keys" makes new host keys, once.
	RotateHostKeys FaultKind = "rotate-host-keys"

	// "kill [SIGNAL]" sends a signal to every process of the machine, once. The default is
	// KILL.
	Kill FaultKind = "kill"
)

// The files that a Startup fault may use.
const (
	bashrc       = "~/.bashrc"
	SystemBashrc = "/etc/bash.bashrc"
	sshRC        = "~/.ssh/rc"
)

// A Fault is one fault with its arguments. The zero value of an argument means that it is
// absent.
type Fault struct {
	Kind     FaultKind
	Mode     string        // unreachable: refuse, hang; slow: handshake, exec; cut: in, out; and so on
	Name     string        // clear, missing, denied, fixed, kill, startup, shell: the NAME, KIND, SIGNAL, FILE or PATH
	Bytes    int64         // cut, disk-space
	Count    int           // cut: times; refuse-auth: tries
	Duration time.Duration // unreachable, freeze, slow, refuse-auth, reboot, clock
}

// A faultForm is the text form of one kind of fault, with its rules.
type faultForm struct {
	kind  FaultKind
	usage string // the arguments, for help and error messages
	args  []argument
	legal []rule
}

// An argument reads words of the text into a fault.
type argument func(f *Fault, w *words) error

// A rule returns an error for an argument that the fault must not have.
type rule func(f Fault) error

// faultForms returns the forms of all kinds.
func faultForms() []faultForm {
	return []faultForm{
		{Clear, "[KIND]", []argument{takeName}, []rule{isKindOrNone}},
		{Unreachable, "refuse|hang [DURATION]", []argument{takeMode, takeDuration}, []rule{oneOf("refuse", "hang")}},
		{Freeze, "[DURATION]", []argument{takeDuration}, nil},
		{Slow, "handshake|exec DURATION", []argument{takeMode, takeDuration}, []rule{hasDuration, oneOf("handshake", "exec")}},
		{Cut, "in|out BYTES [TIMES]", []argument{takeMode, takeSize, takeTimes}, []rule{oneOf("in", "out")}},
		{RefuseAuth, "DURATION|TRIES", []argument{takeDurationOrTries}, []rule{hasTimeOrTries}},
		{Reboot, "[power] [DURATION]", []argument{takePower, takeDuration}, []rule{noneOr("power")}},
		{NoSudo, "[missing]", []argument{takeMode}, []rule{noneOr("missing")}},
		{DiskSpace, "home|tmp [BYTES]", []argument{takeMode, takeSizeIfGiven}, []rule{oneOf("home", "tmp")}},
		{ReadOnly, "", nil, nil},
		{Clock, "ahead|behind DURATION", []argument{takeMode, takeDuration}, []rule{hasDuration, oneOf("ahead", "behind")}},
		{Startup, "print|exit|hang [FILE]", []argument{takeMode, takeName}, []rule{isStartupFile, oneOf("print", "exit", "hang")}},
		{Banner, "", nil, nil},
		{Shell, "PATH", []argument{takeName}, []rule{isProgram}},
		{Missing, "NAME", []argument{takeName}, []rule{isSetting}},
		{Denied, "NAME", []argument{takeName}, []rule{isSetting}},
		{Fixed, "FEATURE", []argument{takeName}, []rule{isSetting}},
		{RotateHostKeys, "", nil, nil},
		{Kill, "[SIGNAL]", []argument{takeName}, []rule{isSignal}},
	}
}

func formOf(kind FaultKind) (faultForm, bool) {
	for _, f := range faultForms() {
		if f.kind == kind {
			return f, true
		}
	}
	return faultForm{}, false
}

// ParseFault parses the text form of a fault, split into words.
func ParseFault(text ...string) (Fault, error) {
	if len(text) == 0 {
		return Fault{}, errors.New("parse fault: no name given")
	}
	form, known := formOf(FaultKind(text[0]))
	if !known {
		return Fault{}, fmt.Errorf("parse fault: unknown name %q", text[0])
	}
	f, err := form.parse(text[1:])
	if err == nil {
		err = f.Check()
	}
	if err != nil {
		usage := strings.TrimSuffix(text[0]+" "+form.usage, " ")
		return Fault{}, fmt.Errorf("parse fault %q: %w (want %q)", strings.Join(text, " "), err, usage)
	}
	return f, nil
}

// parse reads the words after the name.
func (form faultForm) parse(w words) (Fault, error) {
	f := Fault{Kind: form.kind}
	for _, take := range form.args {
		if err := take(&f, &w); err != nil {
			return f, err
		}
	}
	if len(w) > 0 {
		return f, fmt.Errorf("unexpected argument %q", w[0])
	}
	return f, nil
}

// Check returns an error for a fault that no text form can have.
func (f Fault) Check() error {
	if f.Duration < 0 || f.Bytes < 0 || f.Count < 0 {
		return errors.New("negative argument")
	}
	form, known := formOf(f.Kind)
	if !known {
		return fmt.Errorf("unknown fault %q", string(f.Kind))
	}
	for _, legal := range form.legal {
		if err := legal(f); err != nil {
			return err
		}
	}
	return nil
}

// words are the words of a text that are not read yet.
type words []string

// next removes a word and returns it, or "" if no word is left.
func (w *words) next() string {
	if len(*w) == 0 {
		return ""
	}
	first := (*w)[0]
	*w = (*w)[1:]
	return first
}

func takeMode(f *Fault, w *words) error {
	f.Mode = w.next()
	return nil
}

func takeName(f *Fault, w *words) error {
	f.Name = w.next()
	return nil
}

func takePower(f *Fault, w *words) error {
	if len(*w) > 0 && (*w)[0] == "power" {
		f.Mode = w.next()
	}
	return nil
}

func takeDuration(f *Fault, w *words) (err error) {
	if a := w.next(); a != "" {
		f.Duration, err = time.ParseDuration(a)
	}
	return err
}

func takeSize(f *Fault, w *words) (err error) {
	f.Bytes, err = strconv.ParseInt(w.next(), 10, 64)
	return err
}

func takeSizeIfGiven(f *Fault, w *words) (err error) {
	if a := w.next(); a != "" {
		f.Bytes, err = strconv.ParseInt(a, 10, 64)
	}
	return err
}

func takeTimes(f *Fault, w *words) (err error) {
	if a := w.next(); a != "" {
		f.Count, err = strconv.Atoi(a)
	}
	return err
}

func takeDurationOrTries(f *Fault, w *words) (err error) {
	a := w.next()
	if f.Count, err = strconv.Atoi(a); err != nil {
		f.Count = 0
		f.Duration, err = time.ParseDuration(a)
	}
	return err
}

func oneOf(modes ...string) rule {
	return func(f Fault) error {
		if !slices.Contains(modes, f.Mode) {
			return fmt.Errorf("mode %q is none of %s", f.Mode, strings.Join(modes, ", "))
		}
		return nil
	}
}

func noneOr(mode string) rule {
	return func(f Fault) error {
		if f.Mode != "" && f.Mode != mode {
			return fmt.Errorf("mode %q is not %s", f.Mode, mode)
		}
		return nil
	}
}

func hasDuration(f Fault) error {
	if f.Duration == 0 {
		return errors.New("no duration")
	}
	return nil
}

func hasTimeOrTries(f Fault) error {
	if (f.Duration > 0) == (f.Count > 0) {
		return errors.New("want a duration or a number of tries")
	}
	return nil
}

func isStartupFile(f Fault) error {
	if !slices.Contains([]string{"", bashrc, SystemBashrc, sshRC}, f.Name) {
		return fmt.Errorf("file %q is none of %s, %s, %s", f.Name, bashrc, SystemBashrc, sshRC)
	}
	return nil
}

func isProgram(f Fault) error {
	if !path.IsAbs(f.Name) || strings.ContainsAny(f.Name, ": \t\n") {
		return fmt.Errorf("bad path %q", f.Name)
	}
	return nil
}

func isSetting(f Fault) error {
	if f.Name == "" || strings.ContainsAny(f.Name, " \t\n") || strings.Contains(f.Name, "..") {
		return fmt.Errorf("bad name %q", f.Name)
	}
	return nil
}

func isKindOrNone(f Fault) error {
	if _, known := formOf(FaultKind(f.Name)); f.Name != "" && !known {
		return fmt.Errorf("unknown kind %q", f.Name)
	}
	return nil
}

func isSignal(f Fault) error {
	if _, ok := Signals[KillName(f)]; !ok {
		return fmt.Errorf("unknown signal %q", f.Name)
	}
	return nil
}

// KillName returns the signal of a fault, without SIG.
func KillName(f Fault) string {
	if f.Name == "" {
		return "KILL"
	}
	return strings.TrimPrefix(f.Name, "SIG")
}

// String returns the text form, for [ParseFault] to read after a split at spaces.
func (f Fault) String() string {
	words := []string{string(f.Kind)}
	if f.Mode != "" {
		words = append(words, f.Mode)
	}
	if f.Name != "" {
		words = append(words, f.Name)
	}
	if f.Kind == Cut || f.Kind == DiskSpace {
		words = append(words, strconv.FormatInt(f.Bytes, 10))
	}
	if f.Duration > 0 {
		words = append(words, f.Duration.String())
	}
	if f.Count > 0 {
		words = append(words, strconv.Itoa(f.Count))
	}
	return strings.Join(words, " ")
}

// Startup returns the start-up file of a Startup fault, and its content.
func (f Fault) Startup() (file, text string) {
	file = cmp.Or(f.Name, bashrc)
	switch f.Mode {
	case "print":
		return file, fmt.Sprintf("echo 'hello from %[1]s'; echo 'warning from %[1]s' >&2; printf 'no newline'\n", file)
	case "exit":
		return file, fmt.Sprintf("echo 'bye from %s'; exit 3\n", file)
	}
	wait := "cat >/dev/null" // ends with the session
	if file == sshRC {
		wait = "sleep 60" // the input of the login is empty from the start
	}
	return file, fmt.Sprintf("echo 'waiting in %s'\n%s\n", file, wait)
}

// BannerText is what a machine with the Banner fault prints before each login.
const BannerText = "*** This is a simulated worker. Use is monitored. ***\n"

// FakeClock returns the path of the library that changes the clock of programs.
func FakeClock() (library string, err error) {
	found, err := filepath.Glob("/usr/lib/*/faketime/libfaketime.so.1")
	if err != nil || len(found) == 0 {
		return "", errors.New("libfaketime is not installed: apt-get install faketime")
	}
	return found[0], nil
}

// ClockVars are the names of the environment variables that change a clock.
const ClockVars = "LD_PRELOAD FAKETIME FAKETIME_DONT_FAKE_MONOTONIC"

// ClockText returns the fault's offset in libfaketime's format.
func (f Fault) ClockText() string {
	sign := "+"
	if f.Mode == "behind" {
		sign = "-"
	}
	return fmt.Sprintf("%s%g", sign, f.Duration.Seconds())
}

// CheckHere returns an error for a fault that this machine cannot simulate.
func (f Fault) CheckHere() error {
	switch f.Kind {
	case Clock:
		_, err := FakeClock()
		return err
	case Shell:
		if info, err := os.Stat(f.Name); err != nil || info.Mode()&0o111 == 0 {
			return fmt.Errorf("there is no program %q on this machine", f.Name)
		}
	}
	return nil
}
