// Command binnacle-hook replaces 'binnacle hook run' for clients that run it for every tool
// call. It takes the same arguments. It passes its standard input to a helper, which it starts
// if none runs, and copies the helper's answer, so that it decides nothing itself. If there is
// no helper, or a document is longer than a helper accepts, it runs the program binnacle beside
// it. If that fails, or a helper stops before it has answered, it exits with status 2, with
// which clients do not run the tool.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/binnacle-mesh/binnacle/services/binnacle/hook/resident"
)

// patience is the time after which a helper that sends nothing counts as failed. It is less than
// the margin that 'hook install' adds to the time that the hook waits, so that the client does not
// stop waiting first.
const patience = 5 * time.Second

// denied is the exit status with which clients do not run the tool.
const denied = 2

func main() {
	self, err := os.Executable()
	if err != nil {
		os.Exit(refuse(os.Stderr, err))
	}
	os.Exit(run(filepath.Join(filepath.Dir(self), "binnacle"), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run answers the document that it reads from in, with the help of the program
// binnacle, and returns the exit status.
func run(program string, args []string, in io.Reader, out, errOut io.Writer) int {
	if len(args) < 2 || args[0] != "hook" || args[1] != "run" {
		return refuse(errOut, errors.New("usage: binnacle-hook hook run CLIENT; the arguments are those of `binnacle`"))
	}
	doc, err := io.ReadAll(io.LimitReader(in, resident.MaxDocument+1))
	if err != nil {
		return refuse(errOut, err)
	}
	began := time.Now()
	if len(doc) <= resident.MaxDocument {
		if a := ask(program, args, doc); a != nil {
			_, err := io.WriteString(out, a.Stdout)
			_, errErr := io.WriteString(errOut, a.Stderr)
			if err = errors.Join(err, errErr); err != nil {
				return refuse(errOut, err)
			}
			return a.Exit
		}
	}
	if time.Since(began) > 2*patience {
		return refuse(errOut, errors.New("the helper stopped before it had answered; try again"))
	}
	return decide(program, args, doc, out, errOut)
}

// refuse prints an error and returns the exit status denied.
func refuse(errOut io.Writer, err error) int {
	fmt.Fprintln(errOut, "binnacle-hook: denied, because the hook failed:", err)
	return denied
}

// ask returns the answer of a helper, which it starts if none runs. It returns
// nil if no helper answers.
func ask(program string, args []string, doc []byte) *resident.Answer {
	path, err := resident.Path(program, args)
	if err != nil {
		return nil
	}
	a, err := resident.Ask(path, doc, patience)
	if err == nil {
		return a
	}
	if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED) {
		return nil
	}
	if resident.Start(path, program, append(args[:len(args):len(args)], "--resident="+path)) != nil {
		return nil
	}
	if a, err = resident.Ask(path, doc, patience); err != nil {
		return nil
	}
	return a
}

// decide runs the program binnacle for one document, and returns its exit status, or
// denied if it failed.
func decide(program string, args []string, doc []byte, out, errOut io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(doc), out, errOut
	if err := cmd.Run(); err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() == denied {
			return denied
		}
		return refuse(errOut, err)
	}
	return 0
}
