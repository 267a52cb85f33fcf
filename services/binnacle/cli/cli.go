// Package cli is the binnacle command. Each verb has a file: its constructor declares
// the verb, its flags, its help and the completion of its arguments; its handler is a
// function beside it, which takes an options struct and does not depend on flags.
// root.go lists the verbs: add a new one there.
package cli

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// Main runs one command and returns its exit code.
func Main(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return execute(ctx, args, os.Stdin, os.Stdout, os.Stderr)
}

// execute runs one command and returns its exit code, which does not depend on the
// form of output. Under --output json standard output holds one document, the
// command's or {"error": …}, or one per line for output that continues.
func execute(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) int {
	c := &env{out: &written{w: out}, errOut: errOut, in: in, format: formatOf(args)}
	root := newRoot(c)
	root.SetArgs(normalize(root, args))
	return c.end(root.ExecuteContext(ctx))
}
