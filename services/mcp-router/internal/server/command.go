package server

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	events "github.com/binnacle-mesh/binnacle/schemas/mcprouter"
)

// Limits of the settings of a command.
const (
	maxArgs = 128
	maxText = 4096 // bytes of an argument or a value
)

// Ceiling returns the greatest limits of the sandbox of a server that is a command, for calls of
// at most the given time.
func Ceiling(wallMS int64) *contract.Sandbox {
	return &contract.Sandbox{CPUMillis: 1000, MemoryMiB: 512, OutputBytes: 8 << 20, Pids: 128, Tier: "container", WallMS: wallMS}
}

var (
	variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)
	// secretName matches names of variables that hold secrets in the configurations of servers.
	secretName = regexp.MustCompile(`(?i)(^|_)(api_?key|[a-z]*apikey|key|token|secret|password|passwd|pwd|credentials?|auth|pat|dsn)($|_)`)
	// secretValue matches values that are secrets, by the beginnings that their issuers give them.
	secretValue = regexp.MustCompile(`\b(sk|pk|rk)[-_][A-Za-z0-9_-]{16,}|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_|\bglpat-|\bxox[abeprs]-|\bnpm_[A-Za-z0-9]{20,}|\bAKIA[A-Z0-9]{16}|\bAIza[A-Za-z0-9_-]{30,}|\beyJ[A-Za-z0-9_-]{10,}\.eyJ|-----BEGIN [A-Z ]*PRIVATE KEY|://[^/\s:@]+:[^/\s@]+@`)
)

// checkCommand checks the settings of a server that is a command.
func checkCommand(s *events.ServerAdded) error {
	switch {
	case s.Url != "" || len(s.Headers) > 0:
		return errors.New("transport stdio: a command has neither a url nor headers: remove them, or the command")
	case s.Command == "":
		return errors.New("command: want the program that starts the server, which the image contains")
	case s.Image == "":
		return errors.New("image: want the image that contains the command, as NAME of a lock file or NAME@sha256:…")
	case len(s.Args) > maxArgs || len(s.Env) > maxArgs:
		return fmt.Errorf("args and env: want at most %d each", maxArgs)
	}
	for i, a := range append([]string{s.Command}, s.Args...) {
		if len(a) > maxText || strings.ContainsRune(a, 0) {
			return fmt.Errorf("args: argument %d has more than %d bytes or a zero byte", i, maxText)
		}
		if secretValue.MatchString(a) {
			return fmt.Errorf("args: argument %d looks like a secret, which would be recorded: servers that need secrets are reached by URL, with headers", i)
		}
	}
	seen := map[string]bool{}
	for _, v := range s.Env {
		if err := checkVariable(v); err != nil {
			return err
		}
		if seen[v.Name] {
			return fmt.Errorf("env: %s has two values: keep one", v.Name)
		}
		seen[v.Name] = true
	}
	return nil
}

// checkVariable checks a variable of the environment of a command.
func checkVariable(v events.Variable) error {
	switch {
	case !variableName.MatchString(v.Name):
		return fmt.Errorf("env: name %.64q: want 1 to 128 letters, digits and underscores, not beginning with a digit", v.Name)
	case len(v.Value) > maxText || strings.ContainsRune(v.Value, 0):
		return fmt.Errorf("env: %s has more than %d bytes or a zero byte", v.Name, maxText)
	case strings.Contains(v.Value, "${"):
		return fmt.Errorf("env: the placeholder in %s is not replaced, because the command has no network: remove it, or reach the server by URL, with headers", v.Name)
	case v.Value != "" && secretName.MatchString(v.Name) || secretValue.MatchString(v.Value):
		return fmt.Errorf("env: %s looks like a secret, which would be recorded: remove it; servers that need secrets are reached by URL, with headers", v.Name)
	}
	return nil
}
