package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// toolCalls has inputs for the tools that a client offers to a model.
type toolCalls struct {
	client  *codingClient
	order   []string // tools that are called first, since others depend on them
	last    []string // tools that are called last, because others are not permitted after them
	inputs  map[string]map[string]any
	prepare []harness.Step // before the others, so that the client accepts them
	// adapt changes the input of a tool according to the result of the step before it; nil = no input.
	adapt func(tool, before string, input map[string]any)
	// provider are the tools that the model's provider executes: no step can call them.
	provider []string
	// refused are the tools whose calls in this test the client refuses before it would run a hook.
	refused []string
}

// TestToolsOfClients calls each tool that Claude Code, Codex, OpenCode and Gemini CLI offer to a model in
// a new session, and shows that the tools for which the client ran no hook are those that `binnacle hook
// doctor` lists. A tool of a new version of a client, for which the test has no input, makes it fail.
func TestToolsOfClients(t *testing.T) {
	m := harness.One(t, harness.Options{})
	for _, c := range []*toolCalls{claudeTools(t), codexTools(t), openCodeTools(t), geminiTools(t)} {
		t.Run(c.client.name, func(t *testing.T) { c.test(t, m) })
	}
}

// test runs the checks of TestToolsOfClients.
func (c *toolCalls) test(t *testing.T, m *harness.Mesh) {
	a := newAgent(t, m, c.client.name+"-tools")
	a.workFile(t, ".git/HEAD", "ref: refs/heads/main\n")
	a.workFile(t, "f.txt", "one\n")
	for _, folder := range []string{".claude", ".gemini"} {
		a.workFile(t, folder+"/skills/x/SKILL.md", "---\nname: x\ndescription: x\n---\nx\n")
	}
	a.workFile(t, "n.ipynb", `{"cells":[{"cell_type":"code","id":"a","source":["x"],"metadata":{},"outputs":[],"execution_count":null}],"metadata":{},"nbformat":4,"nbformat_minor":5}`)
	model := harness.NewScripted(t)
	log := filepath.Join(a.home, "hooks.log")
	hooked := func() int {
		b, _ := os.ReadFile(log) // it does not exist before the first tool
		return strings.Count(string(b), "\n")
	}
	names := slices.Clone(c.order)
	for name := range c.inputs {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names[len(c.order):])
	names = append(slices.DeleteFunc(names, func(n string) bool { return slices.Contains(c.last, n) }), c.last...)
	begun := make([]int, len(names)) // by step, the number of hooks before it
	steps := slices.Clone(c.prepare)
	for i, name := range names {
		steps = append(steps, harness.Step{Tool: name, Input: c.inputs[name], Before: func() {
			begun[i] = hooked()
			if c.adapt != nil {
				c.adapt(name, model.Result(harness.Prompt, len(c.prepare)+i-1), c.inputs[name])
			}
		}})
	}
	model.Add(harness.Prompt, steps...)
	model.Add(subagentPrompt)
	c.client.configure(t, a, model.URL)
	where := []string{}
	if c.client.project {
		where = []string{"--project", a.work}
	}
	a.install(t, c.client.name, where...)
	c.logHooks(t, a)
	out := c.client.run(t, a, harness.Prompt, model.URL)
	var unasked []string
	for i, name := range names {
		next := hooked()
		if i+1 < len(names) {
			next = begun[i+1]
		}
		result := model.Result(harness.Prompt, len(c.prepare)+i)
		t.Log(name, next-begun[i], result[:min(len(result), 200)])
		if next == begun[i] && !slices.Contains(c.refused, name) {
			unasked = append(unasked, name)
		}
	}
	unasked = append(unasked, c.provider...)
	slices.Sort(unasked)
	known := slices.Concat(names, c.provider)
	if slices.Sort(known); !slices.Equal(model.Offered(), known) {
		t.Errorf("the client offers %q, want %q\n%s", model.Offered(), known, out)
	}
	if listed := listedBy(t, m, c.client.name).Unasked; !slices.Equal(unasked, listed) {
		t.Errorf("tools without a hook: %q, doctor lists %q", unasked, listed)
	}
}

// listedBy returns what `binnacle hook doctor` lists for a client. The command fails, because the hooks
// are not installed for the user of this process.
func listedBy(t *testing.T, m *harness.Mesh, client string) (doc struct {
	Unasked []string
	Open    []string `json:"fails_open"`
}) {
	t.Helper()
	out, _ := m.CLI("hook", "doctor", client, "-o", "json")
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		t.Fatal(err, out)
	}
	return doc
}

// logHooks replaces the program of the installed hooks by one that writes a line for each document
// before a tool, and permits every tool.
func (c *toolCalls) logHooks(t *testing.T, a *agent) {
	t.Helper()
	answer := "exit 0" // an answer without output is no objection
	if c.client.name == "opencode" {
		answer = `echo '{"permit":true}'`
	}
	a.write(t, "log.sh", `grep -Eo '"hook_event_name":"(PreToolUse|BeforeTool)"' >> `+filepath.Join(a.home, "hooks.log")+"\n"+answer+"\n")
	for name, text := range files(t, a.home) {
		command := harness.Bin(t, "binnacle-hook") + " hook run " + c.client.name
		if !strings.Contains(text, command) {
			t.Fatalf("%s: no hook\n%s", name, text)
		}
		if err := os.WriteFile(name, []byte(strings.ReplaceAll(text, command, "sh "+filepath.Join(a.home, "log.sh"))), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFailingHooks shows, with Claude Code, Codex, OpenCode and Gemini CLI, that the failures of a hook with
// which the client runs the tool are those that `binnacle hook doctor` lists.
func TestFailingHooks(t *testing.T) {
	m := harness.One(t, harness.Options{})
	for _, c := range []*codingClient{claudeCode(t), codex(t), openCode(t), geminiCLI(t)} {
		t.Run(c.name, func(t *testing.T) { failingHooks(t, m, c) })
	}
}

// failingHooks runs the checks of TestFailingHooks for a client.
func failingHooks(t *testing.T, m *harness.Mesh, c *codingClient) {
	a := newAgent(t, m, c.name+"-failing")
	a.workFile(t, ".git/HEAD", "ref: refs/heads/main\n")
	model := harness.NewScripted(t)
	c.configure(t, a, model.URL)
	where := []string{"--wait=0s"}
	if c.project {
		where = append(where, "--project", a.work)
	}
	a.run(t, nil, append([]string{harness.Bin(t, "binnacle"), "hook", "install", c.name, "--yes"}, where...)...)
	script := filepath.Join(a.home, "hook.sh")
	if err := os.WriteFile(script, []byte(`#!/bin/sh
doc=$(cat)
case $doc in
*PostToolUse*|*AfterTool*) ;;
*status.txt*) exit 1 ;;
*killed.txt*) kill -9 $$ ;;
*slow.txt*) exec sleep 6 ;;
*blocked.txt*) echo denied >&2; exit 2 ;;
esac
`), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files(t, a.home) {
		text = strings.ReplaceAll(text, harness.Bin(t, "binnacle-hook")+" hook run "+c.name+" --wait=0s", script)
		text = strings.NewReplacer(`"timeout":30000`, `"timeout":2000`, `"timeout":30`, `"timeout":2`).Replace(text)
		if !strings.Contains(text, script) {
			t.Fatalf("%s: no hook\n%s", name, text)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ways := []string{"blocked", "killed", "status", "slow", "missing"}
	var steps []harness.Step
	for _, way := range ways {
		s := c.shell("echo x > " + way + ".txt")
		if way == "missing" {
			s.Before = func() {
				if err := os.Remove(script); err != nil {
					t.Error(err)
				}
			}
		}
		steps = append(steps, s)
	}
	model.Add(harness.Prompt, steps...)
	out := c.run(t, a, harness.Prompt, model.URL)
	ran := []string{}
	for i, way := range ways {
		if model.Result(harness.Prompt, i) == "" {
			t.Errorf("%s: no result\n%s", way, out)
		}
		if _, err := os.Stat(filepath.Join(a.work, way+".txt")); err == nil {
			ran = append(ran, way)
		}
	}
	slices.Sort(ran)
	if open := listedBy(t, m, c.name).Open; !slices.Equal(ran, open) {
		t.Errorf("the tool ran although its hook failed: %q, doctor lists %q", ran, open)
	}
}

func claudeTools(t *testing.T) *toolCalls {
	c := claudeCode(t)
	c.argv = slices.Clone(c.argv)
	c.argv[slices.Index(c.argv, "--allowedTools=Bash,Agent")] = "--dangerously-skip-permissions"
	env := c.env
	c.env = func(a *agent, model string) []string { return append(env(a, model), "IS_SANDBOX=1") }
	return &toolCalls{client: c, order: []string{"Read", "Edit"}, prepare: []harness.Step{{Tool: "Read", Input: map[string]any{"file_path": "n.ipynb"}}},
		refused: []string{"CronDelete", "ExitWorktree", "TaskStop"}, inputs: map[string]map[string]any{
			"Agent": c.subagent.Input, "Bash": {"command": "true", "description": "x"}, "CronCreate": {"cron": "0 0 1 1 *", "prompt": "x"}, "CronDelete": {"id": "x"}, "CronList": {},
			"Edit": {"file_path": "f.txt", "old_string": "one", "new_string": "two"}, "EnterWorktree": {"name": "w"}, "ExitWorktree": {"action": "keep"}, "ListAgents": {},
			"Monitor": {"description": "x", "timeout_ms": 1000, "command": "true"}, "NotebookEdit": {"notebook_path": "n.ipynb", "cell_id": "a", "new_source": "y"}, "Read": {"file_path": "f.txt"},
			"ReportFindings": {"findings": []any{}}, "ScheduleWakeup": {"delaySeconds": 60, "reason": "x", "prompt": "x", "stop": true}, "SendMessage": {"to": "x", "summary": "x", "message": "x"}, "Skill": {"skill": "x"},
			"TaskStop": {"task_id": "x"}, "WebFetch": {"url": "http://127.0.0.1:9/", "prompt": "x"}, "WebSearch": {"query": "ships"}, "Workflow": {"script": "export const meta = { name: 'x', description: 'x', phases: [] }\n"}, "Write": {"file_path": "new.txt", "content": "x"},
		}}
}

func codexTools(t *testing.T) *toolCalls {
	c := codex(t)
	running := regexp.MustCompile(`running with session ID ([0-9]+)`)
	adapt := func(tool, before string, input map[string]any) {
		if m := running.FindStringSubmatch(before); tool == "write_stdin" && m != nil {
			input["session_id"] = json.Number(m[1])
		}
	}
	return &toolCalls{client: c, adapt: adapt, order: []string{"exec_command", "write_stdin"}, provider: []string{"web_search"}, inputs: map[string]map[string]any{
		"exec_command": {"cmd": "cat", "tty": true, "yield_time_ms": 500}, "write_stdin": {"chars": "x", "yield_time_ms": 500}, "view_image": {"path": "f.txt"}, "request_user_input": {"questions": []any{}},
		"get_goal": {}, "create_goal": {"objective": "x"}, "update_goal": {"status": "complete"},
		"multi_agent_v1/spawn_agent": c.subagent.Input, "multi_agent_v1/wait_agent": {"targets": []any{}, "timeout_ms": 1000}, "multi_agent_v1/close_agent": {"target": "x"},
		"multi_agent_v1/send_input": {"target": "x", "message": "x"}, "multi_agent_v1/resume_agent": {"id": "x"},
	}}
}

func openCodeTools(t *testing.T) *toolCalls {
	c := openCode(t)
	return &toolCalls{client: c, order: []string{"read", "edit"}, inputs: map[string]map[string]any{
		"bash": {"command": "true", "description": "x"}, "edit": {"filePath": "f.txt", "oldString": "one", "newString": "two"}, "glob": {"pattern": "*"}, "grep": {"pattern": "x"}, "read": {"filePath": "f.txt"},
		"skill": {"name": "x"}, "task": c.subagent.Input, "todowrite": {"todos": []any{}}, "webfetch": {"url": "http://127.0.0.1:9/", "format": "text"}, "write": {"filePath": "new.txt", "content": "x"},
	}}
}

func geminiTools(t *testing.T) *toolCalls {
	c := geminiCLI(t)
	return &toolCalls{client: c, order: []string{"read_file", "replace"}, last: []string{"enter_plan_mode"}, inputs: map[string]map[string]any{
		"update_topic": {"title": "x", "summary": "x", "strategic_intent": "x"}, "list_directory": {"dir_path": "."}, "read_file": {"file_path": "f.txt"}, "grep_search": {"pattern": "x"}, "glob": {"pattern": "*"},
		"replace": {"file_path": "f.txt", "instruction": "x", "old_string": "one", "new_string": "two"}, "write_file": {"file_path": "new.txt", "content": "x"}, "web_fetch": {"prompt": "read http://127.0.0.1:9/"},
		"run_shell_command": {"command": "true", "description": "x"}, "list_background_processes": {}, "read_background_output": {"pid": 1}, "google_web_search": {"query": "ships"}, "write_todos": {"todos": []any{}},
		"enter_plan_mode": {"reason": "x"}, "invoke_agent": c.subagent.Input, "activate_skill": {"name": "x"},
	}}
}
