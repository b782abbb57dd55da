// Package program holds multihost-agent, which does the runner's work on workers without a
// runner. `make build` compiles it for every kind of worker and puts it, compressed, into
// the folder built. The folder becomes part of multihost. In a clean clone that folder has
// only a placeholder, so that `go build` works without make.
package program

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"runtime"
	"strings"

	"multihost/internal/fault"
)

//go:embed built
var built embed.FS

// Place is bash code that keeps the program on a worker and finds it there; see place.sh.
// Append a script to it.
//
//go:embed place.sh
var Place string

// Archs are the architectures of workers, as Go names them.
func Archs() []string { return []string{"amd64", "arm64"} }

// machines are the architectures' names in uname -m.
var machines = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}

// Largest limits the bytes of a compressed program.
const Largest = 3_000_000

// A Set has the program for each architecture. The zero Set is empty. Its methods are safe
// for concurrent use.
type Set struct{ files fs.FS }

// Embedded returns the programs that are part of this multihost.
func Embedded() Set {
	files, err := fs.Sub(built, "built")
	if err != nil {
		return Set{}
	}
	return Set{files}
}

// In returns the programs in a folder that [build.Into] has written.
func In(files fs.FS) Set { return Set{files} }

// Here returns a function that unpacks the program for this machine. It returns nil if the
// set does not have it.
func (s Set) Here() func() ([]byte, error) {
	p, err := s.For(runtime.GOARCH)
	if err != nil {
		return nil
	}
	return p.Unpack
}

// A Program is multihost-agent for one architecture.
type Program struct {
	Arch   string
	SHA256 string // of the unpacked program, hexadecimal
	Packed []byte // the program, compressed by gzip
}

// A MissingError says that this multihost lacks its agent.
type MissingError struct {
	Arch string // or a type of machine, or "workers" for all
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("this multihost was built without multihost-agent for %s", e.Arch)
}

func (e *MissingError) Fault() fault.Kind { return fault.Configuration }

// Hint says how to get a multihost that has its agent.
func (e *MissingError) Hint() string {
	return "build it with: make build"
}

// Check returns nil if the set has programs, otherwise a *MissingError.
func (s Set) Check() error {
	if s.Sums() == "" {
		return &MissingError{"workers"}
	}
	return nil
}

// Sum returns the hexadecimal SHA-256 of the program for an architecture. The error is a
// *MissingError.
func (s Set) Sum(arch string) (string, error) {
	if s.files == nil {
		return "", &MissingError{arch}
	}
	text, err := fs.ReadFile(s.files, sumFile(arch))
	if err != nil {
		return "", &MissingError{arch}
	}
	sum := strings.TrimSpace(string(text))
	if raw, err := hex.DecodeString(sum); err != nil || len(raw) != sha256.Size {
		return "", &MissingError{arch}
	}
	return sum, nil
}

// Sums returns the hashes of the programs for place.sh: TYPE=SHA256 for each type of
// machine, separated by spaces. It is empty for an empty set.
func (s Set) Sums() string {
	var all []string
	for _, arch := range Archs() {
		if sum, err := s.Sum(arch); err == nil {
			all = append(all, machines[arch]+"="+sum)
		}
	}
	return strings.Join(all, " ")
}

// ForMachine returns the program for a type of machine, by its name in uname -m. The error
// is a *MissingError.
func (s Set) ForMachine(kind string) (Program, error) {
	for arch, machine := range machines {
		if machine == kind {
			return s.For(arch)
		}
	}
	return Program{}, &MissingError{kind}
}

// For returns the program for an architecture. The error is a *MissingError.
func (s Set) For(arch string) (Program, error) {
	sum, err := s.Sum(arch)
	if err != nil {
		return Program{}, err
	}
	packed, err := fs.ReadFile(s.files, packedFile(arch))
	if err != nil {
		return Program{}, &MissingError{arch}
	}
	return Program{Arch: arch, SHA256: sum, Packed: packed}, nil
}

// Unpack returns the program uncompressed. It fails if the program does not have the hash
// p.SHA256.
func (p Program) Unpack() ([]byte, error) {
	fail := func(err error) ([]byte, error) {
		return nil, fmt.Errorf("unpack multihost-agent for %s: %w", p.Arch, err)
	}
	z, err := gzip.NewReader(bytes.NewReader(p.Packed))
	if err != nil {
		return fail(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		return fail(err)
	}
	if sum := sha256.Sum256(text); hex.EncodeToString(sum[:]) != p.SHA256 {
		return fail(fault.New(fault.Internal, "its SHA-256 is another one"))
	}
	return text, nil
}

func sumFile(arch string) string    { return arch + ".sha256" }
func packedFile(arch string) string { return arch + ".gz" }

// Files returns the files of a program that In reads, by name: the compressed program, and
// its hash.
func Files(arch string, program []byte) (map[string][]byte, error) {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := z.Write(program); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(program)
	return map[string][]byte{packedFile(arch): b.Bytes(), sumFile(arch): []byte(hex.EncodeToString(sum[:]) + "\n")}, nil
}
