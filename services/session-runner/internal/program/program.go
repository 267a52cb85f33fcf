// Package program holds executables in sealed memory, to which no process can write, so
// that the program that runs is the program that was hashed.
package program

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Program is an executable in sealed memory. It is immutable and safe for concurrent use
// until Close.
type Program struct {
	Digest string // digest of the sealed bytes: "sha256:" and hexadecimal digits
	Size   int64

	// For a script: the path of its interpreter, the argument that the first line passes
	// to the interpreter (or ""), and the interpreter itself, which is nil if Problem
	// returns an error or the program was opened by OpenInImage.
	InterpreterPath string
	InterpreterArg  string
	Interpreter     *Program

	// Host reports whether the program was opened by OpenOnHost and is a script or dynamically
	// linked: it runs with the programs and libraries of the host.
	Host bool

	problem error
	file    *os.File // opened for reading
}

// MissingInterpreter is the error for a program that cannot run because its interpreter
// or dynamic loader is not available or cannot be used. A sandbox contains no program or
// library other than the program and a script's interpreter.
type MissingInterpreter struct {
	Path   string // path of the interpreter or loader; "its loader" if that path cannot be read
	Reason string
}

// Error implements error. The message names the interpreter and the reason, which in
// most cases contains a remedy for the author of the pack.
func (e *MissingInterpreter) Error() string {
	return fmt.Sprintf("interpreter %s %s", e.Path, e.Reason)
}

// Open copies the file at path, and the interpreter of a script, into sealed memory. It
// returns an error if the file cannot be read, is a symbolic link or is not regular, or
// if the memory cannot be sealed. If the interpreter or loader is missing or cannot be
// used, Open returns no error, and Problem returns the reason why the program cannot
// run. The caller must Close the program.
func Open(path string) (*Program, error) {
	p, body, err := read(path)
	if err != nil {
		return nil, err
	}
	p.interpret(body)
	return p, nil
}

// OpenOnHost is Open for a program that runs with the programs and libraries of the host.
// Problem returns nil if the interpreter of a script, or the loader of another program, exists
// on the host.
func OpenOnHost(path string) (*Program, error) {
	p, body, err := read(path)
	if err != nil {
		return nil, err
	}
	p.Host = bytes.HasPrefix(body, []byte("#!")) || loader(body) != ""
	p.interpret(body)
	return p, nil
}

// OpenInImage is Open for a program that runs in an image. The image has its interpreter
// and libraries, so those of this host are not read, and Problem returns nil.
func OpenInImage(path string) (*Program, error) {
	p, body, err := read(path)
	if err != nil {
		return nil, err
	}
	if bytes.HasPrefix(body, []byte("#!")) {
		p.InterpreterPath, p.InterpreterArg = firstLine(body)
	}
	return p, nil
}

// read copies the file at path into sealed memory. It also returns the bytes.
func read(path string) (*Program, []byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, nil, errors.Join(err, fmt.Errorf("%s is not a regular file", path))
	}
	body, err := io.ReadAll(f)
	if err != nil {
		return nil, nil, err
	}
	p, err := seal(body)
	return p, body, err
}

// firstLine returns the path of a script's interpreter and the argument for it from the
// script's first line. It ignores what is not in the first 4 KiB of the script.
func firstLine(body []byte) (path, arg string) {
	line, _, _ := bytes.Cut(body[2:min(len(body), 4096)], []byte("\n"))
	path, arg, _ = strings.Cut(strings.TrimSpace(string(line)), " ")
	return path, strings.TrimSpace(arg)
}

// interpret sets the interpreter of a script. If the program needs an interpreter or
// loader that is not available or cannot be used, interpret sets p.problem.
func (p *Program) interpret(body []byte) {
	if !bytes.HasPrefix(body, []byte("#!")) {
		if loader := loader(body); loader != "" && !p.onHost(loader) {
			p.problem = &MissingInterpreter{loader, "is not in the sandbox: link the program statically (CGO_ENABLED=0 for Go), name an image, or set session-runner.scripts"}
		}
		return
	}
	path, arg := firstLine(body)
	p.InterpreterPath, p.InterpreterArg = path, arg
	missing := func(reason string) { p.problem = &MissingInterpreter{path, reason} }
	if !strings.HasPrefix(path, "/") {
		missing("is not an absolute path: name it in the script's first line")
		return
	}
	inner, err := os.ReadFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		missing("does not exist on the session-runner's host: install it, or name another in the script's first line")
		return
	case err != nil:
		missing("cannot be read: " + err.Error())
		return
	case bytes.HasPrefix(inner, []byte("#!")):
		missing("is a script itself: name a program")
		return
	}
	if l := loader(inner); l != "" && !p.onHost(l) {
		missing("needs " + l + ", which is not in the sandbox: use a statically linked interpreter, name an image, or set session-runner.scripts")
		return
	}
	if p.Interpreter, err = seal(inner); err != nil {
		missing("cannot be sealed: " + err.Error())
	}
}

// onHost reports whether the program runs with the programs of the host, and the file at path is
// one of them.
func (p *Program) onHost(path string) bool {
	_, err := os.Stat(path)
	return p.Host && err == nil
}

// loader returns the path of the dynamic loader that an ELF program names, or "" if body
// is not an ELF program or names none. If the path cannot be read, loader returns a
// phrase for it.
func loader(body []byte) string {
	f, err := elf.NewFile(bytes.NewReader(body))
	if err != nil {
		return ""
	}
	for _, s := range f.Progs {
		if s.Type == elf.PT_INTERP {
			b, err := io.ReadAll(io.LimitReader(s.Open(), 4096))
			if err != nil {
				return "its loader"
			}
			return string(bytes.TrimRight(b, "\x00"))
		}
	}
	return ""
}

// Argv returns the command line in the sandbox: the path /pack/main. If Interpreter is
// not nil, the interpreter's path on the host and the argument from the script's first
// line, if it has one, precede that path.
func (p *Program) Argv() []string {
	switch {
	case p.Interpreter == nil:
		return []string{"/pack/main"}
	case p.InterpreterArg == "":
		return []string{p.InterpreterPath, "/pack/main"}
	}
	return []string{p.InterpreterPath, p.InterpreterArg, "/pack/main"}
}

// Problem returns a *MissingInterpreter if the program cannot run as native code because
// its interpreter or loader is not available or cannot be used, and otherwise nil.
func (p *Program) Problem() error { return p.problem }

// File returns the sealed program's file, opened for reading. The caller must not close
// it or use its offset, which concurrent runs share.
func (p *Program) File() *os.File { return p.file }

// Bytes returns a copy of the sealed program. It returns an error if the copy does not
// have the program's digest.
func (p *Program) Bytes() ([]byte, error) {
	b := make([]byte, p.Size)
	if _, err := p.file.ReadAt(b, 0); err != nil && err != io.EOF {
		return nil, err
	}
	if got := Digest(b); got != p.Digest {
		return nil, fmt.Errorf("the sealed program has digest %s, not %s", got, p.Digest)
	}
	return b, nil
}

// Close closes the program and its interpreter. The kernel frees the memory when no
// process runs the program any more.
func (p *Program) Close() error {
	if p.Interpreter != nil {
		p.Interpreter.Close()
	}
	return p.file.Close()
}

// Digest returns the digest of a program in the form that decisions and attestations
// use: "sha256:" and hexadecimal digits.
func Digest(body []byte) string {
	sum := sha256.Sum256(body)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// seal copies a program into memory that can be read and executed but not written
// (memfd_create(2), F_SEAL_WRITE), and hashes the copy.
func seal(body []byte) (*Program, error) {
	// MFD_EXEC exists since Linux 6.3, which can be configured to require it; older
	// kernels return EINVAL.
	fd, err := unix.MemfdCreate("binnacle-pack", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate("binnacle-pack", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	w := os.NewFile(uintptr(fd), "binnacle-pack")
	defer w.Close() // execve fails with ETXTBSY on a file that is open for writing
	if _, err := w.Write(body); err != nil {
		return nil, err
	}
	if err := unix.Fchmod(fd, 0o555); err != nil {
		return nil, err
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	r, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return nil, err
	}
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(r, 0, int64(len(body)))); err != nil {
		r.Close()
		return nil, err
	}
	return &Program{Digest: "sha256:" + hex.EncodeToString(h.Sum(nil)), Size: int64(len(body)), file: r}, nil
}
