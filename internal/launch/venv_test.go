package launch

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"multihost/internal/testkit"
)

// standInPython notes its arguments and makes the files of a virtual environment.
const standInPython = `#!/bin/bash
echo "$2 ${PYTHONHOME-none} $FOO" >>"$HOME/asked"
for dir; do :; done
mkdir -p "$dir/bin" && printf '#!/bin/sh\n' >"$dir/bin/python" && chmod +x "$dir/bin/python"
`

func withPython(t *testing.T, text string) *local {
	t.Helper()
	l := newLocal(t)
	l.write("bin/python3", text, 0o755)
	for i, v := range l.env {
		if path, ok := strings.CutPrefix(v, "PATH="); ok {
			l.env[i] = "PATH=" + filepath.Join(l.root, "bin") + ":" + path
		}
	}
	l.env = append(l.env, "PYTHONHOME=/nowhere", "FOO=of-the-login")
	return l
}

func (l *local) read(name string) string {
	text, _ := os.ReadFile(filepath.Join(l.home(), name))
	return string(text)
}

// The python3 of the login makes a virtual environment, once for each run, in the login's
// environment. The programs in it come before the login's.
func TestVenvIsMadeOnceAndComesFirst(t *testing.T) {
	t.Parallel()
	l := withPython(t, standInPython)
	first, err := MakeVenv(t.Context(), l, "train")
	testkit.Must(t, err)
	second, err := MakeVenv(t.Context(), l, "train")
	testkit.Must(t, err)
	if asked := l.read("asked"); asked != "venv none of-the-login\n" {
		t.Errorf("python3 was asked %q", asked)
	}
	dir := filepath.Join(l.home(), ".multihost/venv/train")
	if want := dir + "/bin:" + filepath.Join(l.root, "bin") + ":" + os.Getenv("PATH"); first.Dir != dir || !strings.HasPrefix(first.Path, want) {
		t.Errorf("got %+v, want the PATH %s…", first, want)
	}
	if second != first {
		t.Errorf("got %+v, then %+v", first, second)
	}
	testkit.Must(t, func() error { _, err := MakeVenv(t.Context(), l, "other"); return err }())
	if asked := l.read("asked"); strings.Count(asked, "\n") != 2 {
		t.Errorf("that of another run is another one: %q", asked)
	}
}

// A virtual environment that a reboot left incomplete is replaced.
func TestHalfAVenvIsMadeAnew(t *testing.T) {
	t.Parallel()
	l := withPython(t, standInPython)
	l.write("home/.multihost/venv/train/bin/python", "#!/bin/sh\n", 0o755)
	for range 2 {
		_, err := MakeVenv(t.Context(), l, "train")
		testkit.Must(t, err)
	}
	if asked := l.read("asked"); asked != "venv none of-the-login\n" {
		t.Errorf("python3 was asked %q", asked)
	}
}

// A second process waits for the first one, whose connection was lost, and makes
// nothing.
func TestVenvThatIsBeingMadeIsWaitedFor(t *testing.T) {
	t.Parallel()
	l := withPython(t, standInPython+`while [ ! -e "$HOME/go" ]; do sleep 0.1; done`)
	done := make(chan error, 2)
	call := func() {
		_, err := MakeVenv(t.Context(), l, "train")
		done <- err
	}
	go call()
	testkit.Eventually(t, "it is being made", func() bool { return l.read("asked") != "" })
	l.cutNow()
	if err := <-done; err == nil {
		t.Error("the connection was cut, and that is no error")
	}
	go call()
	lock := filepath.Join(l.home(), ".multihost/venv/.lock")
	testkit.Eventually(t, "the second one waits", func() bool {
		out, _ := exec.Command("pgrep", "-f", "flock -w 600 9").Output()
		for _, pid := range strings.Fields(string(out)) {
			if at, _ := os.Readlink("/proc/" + pid + "/fd/9"); at == lock {
				return true
			}
		}
		return false
	})
	l.write("home/go", "", 0o644)
	testkit.Must(t, <-done)
	if asked := l.read("asked"); asked != "venv none of-the-login\n" {
		t.Errorf("python3 was asked %q", asked)
	}
}

// Most images have venv or virtualenv. If an image has neither, the error names the missing
// package.
func TestVenvOfImagesThatLackModules(t *testing.T) {
	t.Parallel()
	const debian = `if [ "$2" = venv ]; then echo 'The virtual environment was not created successfully because ensurepip is not
available.  On Debian/Ubuntu systems, you need to install the python3-venv
package using the following command.

    apt install python3.10-venv

Failing command: /home/ann/x/bin/python3'; exit 1; fi
`
	for name, c := range map[string]struct{ python, pkg, text string }{
		"virtualenv instead": {debian + standInPython, "", ""},
		"neither": {debian + `echo "/usr/bin/python3: No module named $2" >&2; exit 1`, "python3-venv",
			"the package python3-venv is not installed: python3 -m venv: ensurepip is not available; python3 -m virtualenv: /usr/bin/python3: No module named virtualenv"},
		"no modules": {`echo "/usr/bin/python3: No module named $2" >&2; exit 1`, "python3-venv", "python3 -m venv: /usr/bin/python3: No module named venv; "},
		"no room":    {`echo "OSError: [Errno 28] No space left on device" >&2; exit 1`, "", "make a virtual environment (--venv): python3 -m venv: OSError: [Errno 28] No space left on device; "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := withPython(t, "#!/bin/bash\n"+c.python)
			_, err := MakeVenv(t.Context(), l, "train")
			var refused *VenvError
			if c.text == "" {
				testkit.Must(t, err)
			} else if !errors.As(err, &refused) || refused.Package != c.pkg || !strings.Contains(err.Error(), c.text) {
				t.Errorf("got %v, want package %q and %q", err, c.pkg, c.text)
			}
		})
	}
}

func TestVenvWithoutAnyPython(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	l.without("python")
	_, err := MakeVenv(t.Context(), l, "train")
	var refused *VenvError
	if !errors.As(err, &refused) || refused.Package != "python3-venv" || !strings.Contains(err.Error(), "there is no python3") {
		t.Errorf("got %v, want the package", err)
	}
}

// A real python accepts the result as a virtual environment with pip.
func TestVenvIsOneForPython(t *testing.T) {
	testkit.OnlyInAll(t, "the other tests of this package")
	t.Parallel()
	testkit.NeedVenv(t)
	l := newLocal(t)
	l.env = append(l.env, "PYTHONHOME=/nowhere")
	v, err := MakeVenv(t.Context(), l, "train")
	testkit.Must(t, err)
	cmd := exec.Command(filepath.Join(v.Dir, "bin/python"), "-c", "import sys, pip; print(sys.prefix, sys.prefix != sys.base_prefix)")
	out, err := cmd.CombinedOutput()
	testkit.Must(t, err)
	if want := v.Dir + " True\n"; string(out) != want {
		t.Errorf("got %q, want %q", out, want)
	}
}
