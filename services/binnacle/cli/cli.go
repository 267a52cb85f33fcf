// Package cli implements the command binnacle. A file contains one verb or a few related
// verbs. A verb consists of a constructor, which declares its flags, help text and
// completion of arguments, and a handler, which receives their values and does not
// depend on flags. root.go lists the verbs; add a new one there.
package cli

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// Main runs the command that args names, with the process's standard streams, and
// returns its exit code. SIGINT and SIGTERM cancel the command.
func Main(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return execute(ctx, args, os.Stdin, os.Stdout, os.Stderr)
}

// execute runs one command and returns its exit code. With --output json, a command
// writes one document to standard output, its result or {"error": …}; a command with
// continuing output writes one document per line. The output of mcp serve does not
// depend on the format.
func execute(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) int {
	c := &env{out: &written{w: out}, errOut: errOut, in: in, format: formatOf(args)}
	root := newRoot(c)
	root.SetArgs(normalize(root, args))
	return c.end(root.ExecuteContext(ctx))
}
