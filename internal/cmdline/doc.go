// Package cmdline reads the command lines of a cli.App: flags before and after words, under
// all of their names, defaults from the environment and from files, help, completion and
// manual pages. It knows no command of the program. Rules has what is special about flags
// and commands.
//
// Conventions of every program that uses it:
//
//   - The default of a flag comes from the variable config.FlagVariable. The global flags
//     config and profile, if the App has them, choose the file of defaults and its profile.
//   - A command whose ArgsUsage begins with a quote takes words that begin with dashes.
//     "[-- " in it says that the words after -- are a program for another machine.
//   - A usage text has the placeholder of the value in backquotes. If it begins with "a, b
//     or c: ", these are all values.
//   - ExitHeading in a description begins the section of exit statuses.
//
// # Decisions
//
//   - Parse reads the line itself. It uses only the tables of commands and flags of
//     urfave/cli, and the context of an action. The library's own reader stops at the first
//     word that is no flag. It cannot give an alias other rules for values than its flag
//     has. It does not report that two spellings of one flag disagree. Its App.Run also
//     links text/template, and with it every exported method of the program, which adds 8
//     MB.
//   - The keys in files of defaults are the names of flags, so a new flag works in a file
//     at once. If an error names a flag whose value nobody typed, Line.Blame adds the place
//     of the value.
//   - Help does not use the library's templates, because they ignore the width of the
//     terminal. The program makes manual pages from the same commands on request, so none
//     can be out of date.
//   - The program itself answers completion, with the same reader of command lines. So the
//     scripts for the shells are short.
package cmdline

import (
	"github.com/urfave/cli/v2"

	"multihost/internal/config"
	"multihost/internal/help"
)

// ExitHeading begins the section of exit statuses in a description.
const ExitHeading = "EXIT STATUS:\n"

// Rules have what is special about a program's flags and commands, by their first names. A
// path is the name of a command and of its subcommands, separated by spaces.
type Rules struct {
	// Private says why only the user's own file may set a flag.
	Private map[string]string
	// Never says why no file may set a flag.
	Never map[string]string
	// The value of a flag in Paths is a local path. The value of a flag in PathPairs is
	// KEY=PATH,…. Paths in a file are relative to that file.
	Paths, PathPairs []string
	// Alternatives are groups of flags that replace each other. If a layer sets one of
	// them, the others' values from lower layers are dropped. In such a group, Dashes means
	// the words after --.
	Alternatives [][]string
	// BelongsTo maps a flag to another flag, without which it has no meaning.
	BelongsTo map[string]string
	// NoFiles lists the commands that work even with a wrong file of defaults.
	NoFiles []string

	// OtherWords maps words of other tools to commands or paths, the likeliest first.
	OtherWords map[string][]string
	// Nearest returns the candidate that somebody who typed word probably meant, or "". If
	// Nearest is nil, nothing is suggested.
	Nearest func(word string, candidates []string) string
	// Foreign returns the error for another tool's flag that a command does not take, or
	// nil for every other unknown flag. Names are in lower case, with dashes. Foreign may
	// be nil.
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

// HelpRules divide help into sections.
type HelpRules struct {
	// Commands are the sections of the program's own help.
	Commands []CommandGroup
	// In the help of a command with many flags, the flags in Common come first. The key is
	// the command's path. Groups has the sections of such a command's other flags, and of
	// the flags of every command.
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

// CompleteRules say how to complete values and words.
type CompleteRules struct {
	Values map[string]Source // values of flags
	Words  map[string]Source // words of commands, by path
	Files  map[string]Kind   // commands whose words name files: Files or Dirs by path
	Dirs   []string          // flags that name directories; other flags in Paths name files
	Commas []string          // flags with several names, separated by commas
}

// A Source returns the possible texts of a value or a word, or nil if it does not know
// them.
type Source func(q *Query) []Candidate

// A Program is an App with its rules, and with what it may read.
type Program struct {
	App     *cli.App
	Rules   Rules
	Version string        // for manual pages
	Lookup  config.Lookup // the environment
	Home    string        // home directory, for the user's file of defaults
	Dir     string        // working directory, for the project's file; "": not known
}
