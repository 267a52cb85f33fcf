package server

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
	"github.com/binnacle-mesh/binnacle/pkg/secret"
	events "github.com/binnacle-mesh/binnacle/schemas/mcprouter"
)

// Limits of the settings of a command.
const (
	maxArgs = 128
	maxText = 4096 // bytes of an argument or a value

	maxHosts = 32
	maxFiles = 16
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
	case s.Url != "":
		return errors.New("transport stdio: a command has no url: remove it, or the command")
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
			return fmt.Errorf("args: argument %d looks like a secret, which would be recorded: store it, and use a header or a file", i)
		}
	}
	if err := checkNetwork(s); err != nil {
		return err
	}
	return checkEnvironment(s)
}

// checkNetwork checks the hosts of a command, and the header that the egress-broker adds.
func checkNetwork(s *events.ServerAdded) error {
	switch {
	case len(s.Hosts) > maxHosts:
		return fmt.Errorf("hosts: want at most %d", maxHosts)
	case len(s.Headers) > 1:
		return errors.New("headers: a request of a command gets one header at most: remove the others")
	case len(s.Headers) == 1 && len(s.Hosts) == 0:
		return errors.New("headers: a command without hosts sends no requests: add a host, or remove the header")
	}
	if _, err := netrule.Compile(netrule.OfHosts(s.Hosts)); err != nil {
		return fmt.Errorf("hosts: %w", err)
	}
	for _, h := range s.Headers {
		if err := checkHeader(h); err != nil {
			return err
		}
	}
	return nil
}

// checkEnvironment checks the variables and the files of a command.
func checkEnvironment(s *events.ServerAdded) error {
	if len(s.Files) > maxFiles {
		return fmt.Errorf("files: want at most %d", maxFiles)
	}
	seen := map[string]bool{}
	once := func(setting, name string) error {
		if seen[name] {
			return fmt.Errorf("%s: %s has two values: keep one", setting, name)
		}
		seen[name] = true
		return nil
	}
	for _, v := range s.Env {
		if err := cmp.Or(checkVariable(s, v), once("env", v.Name)); err != nil {
			return err
		}
	}
	for _, f := range s.Files {
		switch {
		case !variableName.MatchString(f.Name):
			return fmt.Errorf("files: name %.64q: want 1 to 128 letters, digits and underscores, not beginning with a digit", f.Name)
		case !strings.HasPrefix(f.Secret, SecretPrefix) || !secret.ValidName(f.Secret):
			return fmt.Errorf("files: secret %.64q of %s: want the name of a secret in the vault that begins with %s", f.Secret, f.Name, SecretPrefix)
		}
		if err := once("files", f.Name); err != nil {
			return err
		}
	}
	return nil
}

// placeholder returns the text that stands for a secret in the environment of a command. The
// egress-broker replaces the header that has it.
func placeholder(secret string) string { return "${vault:" + secret + "}" }

// checkVariable checks a variable of the environment of a command. A placeholder may stand for the
// secret of a header.
func checkVariable(s *events.ServerAdded, v events.Variable) error {
	for _, h := range s.Headers {
		v.Value = strings.ReplaceAll(v.Value, placeholder(h.Secret), "")
	}
	switch {
	case !variableName.MatchString(v.Name):
		return fmt.Errorf("env: name %.64q: want 1 to 128 letters, digits and underscores, not beginning with a digit", v.Name)
	case len(v.Value) > maxText || strings.ContainsRune(v.Value, 0):
		return fmt.Errorf("env: %s has more than %d bytes or a zero byte", v.Name, maxText)
	case strings.Contains(v.Value, "${"):
		return fmt.Errorf("env: the placeholder in %s is not replaced: add a header with its secret and the host to which the command sends it, or use a file", v.Name)
	case v.Value != "" && secretName.MatchString(v.Name) || secretValue.MatchString(v.Value):
		return fmt.Errorf("env: %s looks like a secret, which would be recorded: store it, and use a placeholder with a header, or a file", v.Name)
	}
	return nil
}

// permit adds to a document what the command of a server needs: limits of a sandbox, the hosts, with
// the header that the egress-broker adds to requests to them, and the secrets of files.
func permit(t *contract.Tool, s *events.ServerAdded) {
	t.Sandbox = Ceiling(s.TimeoutMS)
	if len(s.Headers) == 0 {
		t.Egress = s.Hosts
	} else {
		h := s.Headers[0]
		t.EgressRules = netrule.OfHosts(s.Hosts)
		for i := range t.EgressRules {
			t.EgressRules[i].Credential = &contract.EgressCredential{Format: h.Prefix + "{}", Header: h.Name, Secret: h.Secret}
		}
	}
	for _, f := range s.Files {
		grant(t, contract.SecretGrant{Name: f.Secret})
	}
}

// grant adds a grant to a document that has none for the secret.
func grant(t *contract.Tool, g contract.SecretGrant) {
	if !slices.ContainsFunc(t.Secrets, func(o contract.SecretGrant) bool { return o.Name == g.Name }) {
		t.Secrets = append(t.Secrets, g)
	}
}
