// Package cmdline reads the command lines of a cli.App: flags before and after words, under
// all of their names; defaults from the environment and from files; help, completion and
// manual pages. It knows no command of the program. Rules has the special properties of
// flags and commands.
//
// These are conventions of every program that uses it:
//
//   - A flag takes its default from the variable of config.FlagVariable. The global flags
//     config and profile, if the App has them, choose the file of defaults and the profile
//     in it.
//   - A command whose ArgsUsage begins with a quote takes words that begin with dashes.
//     "[-- " in it says that the words after -- are a program to run on another machine.
//   - A usage text has the placeholder of the value in backquotes. A usage text that begins
//     with "a, b or c: " lists all values.
//   - ExitHeading in a description begins the section that lists exit statuses.
//
// # Decisions
//
//   - Parse reads the line itself. It uses only the tables of commands and flags of
//     urfave/cli, and the context of an action. The library's own reader would not do. It
//     stops at the first word that is no flag. It has no case-sensitive aliases with other
//     value rules. It does not report that two spellings of one flag disagree. Its App.Run
//     also links text/template, and with it every exported method of the program, which
//     adds 8 MB.
//   - The keys in files of defaults are the names of flags, so a new flag works in a file
//     at once. If nobody typed the value of a flag that an error names, Line.Blame adds
//     where the value came from.
//   - Help does not use the library's templates, because they ignore the width of the
//     terminal. The program makes manual pages from the same commands when somebody asks
//     for them. The repository stores no manual page, so none can be out of date.
//   - The program answers completion itself, with the same reader of command lines. So the
//     scripts for the shells have only a few lines.
package cmdline

import (
	"github.com/urfave/cli/v2"

	"multihost/internal/config"
	"multihost/internal/help"
)

// ExitHeading begins the section of a description that lists exit statuses.
const ExitHeading = "EXIT STATUS:\n"

// Rules have the special properties of the flags and commands of a program. They refer to
// flags and commands by their first names. A path is the name of a command and of its
// subcommands, separated by spaces.
type Rules struct {
	// Private says why only the user's own file may set a flag.
	Private map[string]string
	// Never says why no file may set a flag.
	Never map[string]string
	// The value of a flag in Paths is a local path. The value of a flag in PathPairs is
	// KEY=PATH,…. In a file, the paths are relative to that file.
	Paths, PathPairs []string
	// Alternatives are groups of flags that replace each other: if a layer sets one of
	// them, the values that lower layers have for the others are dropped. In such a group,
	// Dashes stands for the words after --.
	Alternatives [][]string
	// BelongsTo maps a flag to another flag. The first has no meaning without the second.
	BelongsTo map[string]string
	// NoFiles lists the commands that work even if a file of defaults is wrong.
	NoFiles []string

	// OtherWords maps words of other tools to commands or to their paths, the likeliest
	// first.
	OtherWords map[string][]string
	// Nearest returns the candidate that was probably meant by somebody who typed word. It
	// returns "" if there is no such candidate. If Nearest is nil, nothing is suggested.
	Nearest func(word string, candidates []string) string
	// Foreign returns the error for a flag of another tool that a command does not take. It
	// returns nil for every other unknown flag. Names are in lower case, with dashes.
	// Foreign may be nil.
	Foreign func(path []string, flag string) error

	Help     HelpRules
	Complete CompleteRules
}

func (r Rules) nearest(word string, candidates []string) string {
	if r.Nearest == nil {
		return ""
	}
	return r.Nearest(word, candidates)
}

// HelpRules say how help is divided into sections.
type HelpRules struct {
	// Commands are the sections of the program's own help.
	Commands []CommandGroup
	// In the help of a command with many flags, the flags in Common stand first. The key is
	// the command's path. Groups has the flags of such a command, together with the flags
	// of every command.
	Common map[string][]string
	Groups []help.Group
	// Apart are sections of flags in the help of every other command.
	Apart []help.Group
}

// A CommandGroup is a section of commands.
type CommandGroup struct {
	Title    string
	Commands []string
}

// CompleteRules say how values and words are completed.
type CompleteRules struct {
	Values map[string]Source // values of flags
	Words  map[string]Source // words of commands, by path
	Files  map[string]Kind   // commands whose words name files, by path: Files or Dirs
	Dirs   []string          // flags that name directories; the other ones in Paths name files
	Commas []string          // flags that take several names, separated by commas
}

// A Source returns the possible texts of a value or a word. It returns nil if it does not
// know.
type Source func(q *Query) []Candidate

// A Program is an App with its rules, and with the sources that it may read.
type Program struct {
	App     *cli.App
	Rules   Rules
	Version string        // for manual pages
	Lookup  config.Lookup // the environment
	Home    string        // the user's home directory, for the user's file of defaults
	Dir     string        // the working directory, for the project's file; "": unknown
}
