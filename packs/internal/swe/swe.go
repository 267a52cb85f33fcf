// Package swe has the pack swe.solve, which changes a repository by means of a model that
// runs commands in the sandbox of the pack.
package swe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/binnacle-mesh/binnacle/packs/internal/model"
	"github.com/binnacle-mesh/binnacle/packs/internal/pack"
	"github.com/binnacle-mesh/binnacle/packs/internal/web"
)

// Limits of a call.
const (
	maxPatch    = 4 << 20 // bytes
	maxOutput   = 8 << 10 // bytes of the output of a command that the model gets
	commandTime = 2 * time.Minute
	withoutMax  = 20 // steps, if the input names no number
)

// Input is the input of swe.solve.
type Input struct {
	RepoURL     string            `json:"repo_url"`
	Ref         string            `json:"ref"`
	Task        string            `json:"task"`
	Model       string            `json:"model"`
	TestCommand string            `json:"test_command"`
	MaxSteps    int               `json:"max_steps"`
	Secrets     map[string]string `json:"_secrets"`
}

// Step is a command that the model ran.
type Step struct {
	Command  string `json:"command"`
	ExitCode int    `json:"exit_code"`
}

// Test is the result of the test command.
type Test struct {
	Command  string `json:"command"`
	ExitCode int    `json:"exit_code"`
	Output   string `json:"output"` // the end of the output
}

// Output is the output of swe.solve. Success means that the model finished, that there is a
// patch, and that the test command, if there is one, ended with 0.
type Output struct {
	Success  bool   `json:"success"`
	Finished bool   `json:"finished"` // the model declared the task to be done
	Summary  string `json:"summary"`
	Commit   string `json:"base_commit"`
	Patch    string `json:"patch_artifact"` // for git apply; the manifest makes it an artifact
	Test     *Test  `json:"test,omitempty"`
	Steps    []Step `json:"steps"`
	Model    string `json:"model"`
}

// prompt describes the answers of the model.
const prompt = `You change a git repository. Your working directory is its root. Reply with exactly one JSON object:
{"command": "a shell command"} runs a command with /bin/sh and returns its output, or
{"done": "a summary of the change"} ends the work.
Read what you need, change files with commands, run the tests, and then end. Do not commit.`

// Solve clones a repository, lets the model run commands in it until it declares the task to be
// done or has no step left, runs the test command, and returns the changes as a patch.
func Solve(ctx context.Context, in Input) (Output, error) {
	out := Output{Steps: []Step{}, Model: in.Model}
	u, err := url.Parse(in.RepoURL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return out, pack.Invalid("/repo_url", "want the HTTP or HTTPS address of a repository, without a user")
	}
	if strings.HasPrefix(in.Ref, "-") {
		return out, pack.Invalid("/ref", "%q is not the name of a branch or tag", in.Ref)
	}
	work, err := os.Getwd() // in the sandbox /work, the only folder whose files can be executed
	if err != nil {
		return out, err
	}
	dir, err := os.MkdirTemp(work, "solve")
	if err != nil {
		return out, err
	}
	defer os.RemoveAll(dir)
	r := repo{home: dir, dir: filepath.Join(dir, "repo")}
	if err := r.clone(ctx, in.RepoURL, in.Ref); err != nil {
		return out, err
	}
	if out.Commit, err = r.git(ctx, "rev-parse", "HEAD"); err != nil {
		return out, err
	}
	if err := solve(ctx, &r, in, &out); err != nil {
		return out, err
	}
	if in.TestCommand != "" {
		pack.Progress(95, "runs the test command")
		code, text := r.run(ctx, in.TestCommand)
		out.Test = &Test{in.TestCommand, code, text}
	}
	if _, err := r.git(ctx, "add", "-A"); err != nil {
		return out, err
	}
	if out.Patch, err = r.git(ctx, "diff", "--cached", "--binary", "--no-ext-diff", "--no-textconv", out.Commit); err != nil {
		return out, err
	}
	if len(out.Patch) > maxPatch {
		return out, pack.Fail(pack.ResourceExhausted, "the patch has more than %d bytes", maxPatch)
	}
	if out.Patch != "" {
		out.Patch += "\n"
	}
	out.Success = out.Finished && out.Patch != "" && (out.Test == nil || out.Test.ExitCode == 0)
	return out, nil
}

// solve lets the model run commands.
func solve(ctx context.Context, r *repo, in Input, out *Output) error {
	talk := []model.Message{{Role: "system", Content: prompt}, {Role: "user", Content: "Task: " + in.Task + "\nTest command: " + in.TestCommand}}
	limit := in.MaxSteps
	if limit == 0 {
		limit = withoutMax
	}
	client := web.Client()
	for step := range limit {
		pack.Progress(5+90*step/limit, "step %d of at most %d", step+1, limit)
		text, err := model.Chat(ctx, client, in.Secrets, in.Model, talk)
		if err != nil {
			return err
		}
		var next struct{ Command, Done string }
		reply := ""
		switch err := model.Object(text, &next); {
		case err != nil:
			reply = err.Error() + "; reply with one JSON object"
		case next.Done != "":
			out.Finished, out.Summary = true, next.Done
			return nil
		case next.Command == "":
			reply = `the object has neither "command" nor "done"`
		default:
			code, output := r.run(ctx, next.Command)
			out.Steps = append(out.Steps, Step{next.Command, code})
			reply = fmt.Sprintf("exit code %d\n%s", code, output)
		}
		talk = append(talk, model.Message{Role: "assistant", Content: text}, model.Message{Role: "user", Content: reply})
	}
	out.Summary = fmt.Sprintf("not finished after %d steps", limit)
	return nil
}

// repo is a clone of a repository.
type repo struct{ home, dir string }

// env returns the environment of git and of commands. If proxy is false, the environment does
// not name the proxy, so programs cannot reach the network.
func (r *repo) env(proxy bool) []string {
	env := []string{"PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/go/bin", "HOME=" + r.home, "TMPDIR=" + r.home, "LC_ALL=C", "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0"}
	if !proxy {
		return env
	}
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "GIT_SSL_CAINFO"} {
		if v := os.Getenv(name); v != "" {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// clone clones the repository at an address.
func (r *repo) clone(ctx context.Context, address, ref string) error {
	args := []string{"-c", "protocol.allow=never", "-c", "protocol.http.allow=always", "-c", "protocol.https.allow=always", "clone", "-q", "--depth", "1", "--template=", "--no-recurse-submodules"}
	if ref != "" {
		args = append(args, "--branch", ref)
	}
	cmd := exec.CommandContext(ctx, "git", append(args, "--", address, r.dir)...)
	cmd.Env = r.env(true)
	if text, err := cmd.CombinedOutput(); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return pack.Fail(pack.HandlerFailed, "the image has no program git")
		}
		return pack.Invalid("/repo_url", "the repository cannot be cloned: %s", strings.TrimSpace(end(text)))
	}
	return nil
}

// git runs git in the clone and returns its output without the line break at the end.
func (r *repo) git(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", append([]string{"-C", r.dir, "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false"}, args...)...)
	cmd.Env = r.env(false)
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return "", pack.Fail(pack.HandlerFailed, "git %s: %s", args[0], end(exit.Stderr))
	}
	return strings.TrimSuffix(string(out), "\n"), err
}

// run runs a shell command in the clone. It returns the exit code and the end of the output.
// The code is -1 if the command was stopped or could not be started.
func (r *repo) run(ctx context.Context, command string) (int, string) {
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	var out tail
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", command)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = r.dir, r.env(false), &out, &out, time.Second
	if err := cmd.Run(); cmd.ProcessState == nil {
		return -1, err.Error()
	}
	return cmd.ProcessState.ExitCode(), end(out.b)
}

// tail is a writer that keeps the end of the bytes written to it.
type tail struct{ b []byte }

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	if t.b = append(t.b, p...); len(t.b) > 4*maxOutput {
		t.b = bytes.Clone(t.b[len(t.b)-2*maxOutput:])
	}
	return len(p), nil
}

// end returns the end of an output as UTF-8.
func end(b []byte) string {
	cut := b[max(0, len(b)-maxOutput):]
	for len(cut) > 0 && len(cut) < len(b) && !utf8.RuneStart(cut[0]) {
		cut = cut[1:]
	}
	return strings.ToValidUTF8(string(cut), "\uFFFD")
}
