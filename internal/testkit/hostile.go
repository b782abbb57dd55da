package testkit

import (
	"os"
	"path/filepath"
	"testing"
)

// A HostileLogin is a login whose start-up file exports settings that change what programs
// do. Lines is bash code.
type HostileLogin struct{ Name, Lines string }

// HostileTMOUT is the value of TMOUT in the hostile logins, in seconds.
const HostileTMOUT = 1

// HostileLogins returns one login with all settings, and one for each setting that another
// one would hide, or that has caused failures alone.
func HostileLogins() []HostileLogin {
	const (
		missing = "export LC_ALL=xx_XX.UTF-8\n"
		preload = "export LD_PRELOAD=/nonexistent/lib.so\n"
		compat  = "export BASH_COMPAT=9.9\n"
		posix   = "export POSIXLY_CORRECT=1\n"
		timeout = "export TMOUT=1\n"
	)
	return []HostileLogin{
		{"everything", hostileVariables + hostileFunctions + missing + preload + compat + timeout + posix},
		{"no such locale", missing},
		{"no such library", preload},
		{"no such bash", compat},
		{"POSIX mode", posix},
		{"TMOUT", timeout},
		{"decimal comma", HostileLocale + "unset LC_ALL\nexport LOCPATH=~/.locales LC_NUMERIC=comma\n"},
	}
}

// EachLogin runs test for three logins. The first has no start-up file, and the second
// exports everything. The third has only a decimal comma, whose effect the second would
// hide. The tests of package launch try single settings.
func EachLogin(t *testing.T, test func(t *testing.T, login HostileLogin)) {
	Need(t, "localedef")
	all := HostileLogins()
	for _, login := range []HostileLogin{{Name: "ordinary"}, all[0], all[len(all)-1]} {
		t.Run(login.Name, func(t *testing.T) {
			t.Parallel()
			test(t, login)
		})
	}
}

// At prepares home for the login. The shell of LoginShell then begins with l.Lines.
func (l HostileLogin) At(t testing.TB, home string) {
	t.Helper()
	if l.Lines == "" {
		return
	}
	rc := filepath.Join(home, loginShell+".rc")
	Must(t, os.WriteFile(rc, []byte(l.Lines), 0o644))
	Must(t, os.WriteFile(filepath.Join(home, loginShell), []byte("#!/bin/bash\n. "+rc+"\nbuiltin exec /bin/bash \"$@\"\n"), 0o755))
}

// LoginShell returns the login shell of the worker with this home. Without At, it is bash.
func LoginShell(home string) string {
	path := filepath.Join(home, loginShell)
	if _, err := os.Stat(path); err != nil {
		return "bash"
	}
	return path
}

const loginShell = ".login-shell"

// HostileLocale is bash code that makes the locale "comma", which differs from C only in
// its decimal comma.
const HostileLocale = `if [ ! -e ~/.locales/comma/LC_NUMERIC ]; then
	mkdir -p ~/.locales
	printf 'comment_char %%\nescape_char /\nLC_NUMERIC\ndecimal_point ","\nthousands_sep ""\ngrouping -1\nEND LC_NUMERIC\n' >~/.locales/source
	printf '<code_set_name> ANSI_X3.4-1968\n<mb_cur_min> 1\n<mb_cur_max> 1\nCHARMAP\n<U0000> /x00 NULL\n<U0020> /x20 SPACE\n<U002C> /x2c COMMA\nEND CHARMAP\n' >~/.locales/charmap
	localedef -c --no-archive -i ~/.locales/source -f ~/.locales/charmap ~/.locales/comma >/dev/null 2>&1
	find ~/.locales/comma -type f ! -name LC_NUMERIC -delete
fi
`

// hostileVariables sets variables that bash, coreutils, util-linux, procps, tar, gzip,
// grep, perl, python, curl, glibc and ld.so read, and names that our scripts use.
const hostileVariables = `export IFS=/ BASH_ENV=/nonexistent/rc ENV=/nonexistent/rc CDPATH=/ GLOBIGNORE='*' PS4='$(kill $$)' PROMPT_COMMAND=false FUNCNEST=4
export EXECIGNORE='*nonsense*' SECONDS=5 RANDOM=5 EPOCHREALTIME=5 OPTIND=9 OPTERR=0 HOSTNAME=evil OSTYPE=evil SHELL=/bin/false TERM=nonsense HOSTTYPE=evil GROUPS=9 DIRSTACK=9
set -o noglob
export SHELLOPTS BASHOPTS UID EUID
export LANG=yy LANGUAGE=de:fr LC_NUMERIC=yy LC_TIME=yy LC_COLLATE=yy TZ=Nonsense/Nowhere TMPDIR=/nonexistent/tmp
export LD_LIBRARY_PATH=/nonexistent LD_BIND_NOW=1 MALLOC_CHECK_=3 MALLOC_PERTURB_=99 MALLOC_ARENA_MAX=1 GLIBC_TUNABLES=nonsense=1 RES_OPTIONS=nonsense HOSTALIASES=/nonexistent
export TAR_OPTIONS=--nonsense GZIP=--nonsense XZ_OPT=--nonsense GREP_OPTIONS=--nonsense GREP_COLORS=nonsense GREP_COLOR=nonsense LS_COLORS=nonsense
export BLOCK_SIZE=human-readable BLOCKSIZE=human-readable DF_BLOCK_SIZE=human-readable DU_BLOCK_SIZE=human-readable LS_BLOCK_SIZE=human-readable
export QUOTING_STYLE=c TIME_STYLE=nonsense TABSIZE=3 PS_FORMAT=pid PS_PERSONALITY=nonsense LINES=1 COLUMNS=1 I_WANT_A_BROKEN_PS=1 _POSIX2_VERSION=199209
export PERL5OPT=-Mnonsense PERL5LIB=/nonexistent PERL_UNICODE=nonsense CURL_HOME=/nonexistent PYTHONSTARTUP=/nonexistent PYTHONPATH=/nonexistent PYTHONWARNINGS=nonsense
export s=1 nonce=evil run=evil attempt=evil dir=/evil index=/evil home=/evil boot=evil fields=evil pid=1 name=evil size=evil status=evil phase=evil
export mh_login=evil mh_name=evil mh_never=0 mh_run=evil mh_words=evil mh_vars=evil mh_dir=/evil state=/evil store=/evil stage=/evil proc=/evil table=evil
`

// hostileFunctions exports functions that replace programs and builtins.
const hostileFunctions = `for name in ls cat tail head stat sleep rm mv cp mkdir mktemp chmod tar gzip sha256sum sort find grep ps dd env setsid flock timeout readlink sudo \
	read printf echo cd test '[' eval command exec kill wait trap set mapfile local declare return type ulimit umask pwd source true false; do
	eval "function $name { /bin/echo evil; }" 2>/dev/null
	builtin export -f "$name" 2>/dev/null
done
builtin unset -f eval set read printf cd exec test '[' type true false
`
