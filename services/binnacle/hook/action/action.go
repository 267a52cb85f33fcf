package action

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/binnacle-mesh/binnacle/pkg/clientkind"
)

// Action is an action that a client is about to take.
type Action struct {
	Kind  string
	Args  map[string]any
	Files []string // absolute paths of the files that the action changes, if the client named them

	MayChange bool // the action may change files that it does not name: a command line, or a tool whose effect is not known

	result func(path string, before []byte) ([][]byte, bool) // see Result; nil if unknown
}

// Digest returns the digest of bytes in the form sha256:HEX.
func Digest(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Normalise returns the action of a tool call of a client. A call of an unknown tool, or with an
// input that lacks what its tool needs, becomes an action of the kind clientkind.Other.
func (p *Place) Normalise(tool string, input json.RawMessage) *Action {
	if server, name, ok := mcpName(tool); ok {
		a := p.action(clientkind.MCP(server, name), map[string]any{"server": server, "tool": name, "input": value(input)})
		a.MayChange = true
		return a
	}
	var in map[string]any
	if json.Unmarshal(input, &in) == nil {
		if normal := tools[strings.ToLower(tool)]; normal != nil {
			if a := normal(p, in); a != nil {
				return a
			}
		}
	}
	a := p.action(clientkind.Other, map[string]any{"tool": tool, "input": value(input)})
	a.MayChange = !slices.Contains(idle, strings.ToLower(tool))
	return a
}

// idle are the tools of clients, in lower case, that change no file, of which some wait for the
// client's user, who may change files meanwhile.
var idle = strings.Fields("todowrite todoread write_todos update_plan askuserquestion ask_user question enterplanmode exitplanmode enter_plan_mode exit_plan_mode update_topic activate_skill complete_task toolsearch tool_search taskoutput taskstop")

// Session returns the action that records an event of a session.
func (p *Place) Session(event, prompt, transcriptDigest string) *Action {
	args := map[string]any{"event": event}
	if prompt != "" {
		args["prompt_digest"] = Digest([]byte(prompt))
	}
	if transcriptDigest != "" {
		args["transcript_digest"] = transcriptDigest
	}
	return p.action(clientkind.Session, args)
}

// AfterAsk returns the action that records that a tool ran after its client has asked its user about
// the escalated call.
func (p *Place) AfterAsk(call, inputDigest, outputDigest string) *Action {
	return p.action(clientkind.Session, map[string]any{"event": "ran_after_client_ask", "call_id": call, "input_digest": inputDigest, "output_digest": outputDigest})
}

// value returns raw unchanged if it is JSON, nil if it is empty, and otherwise its text.
func value(raw json.RawMessage) any {
	switch {
	case len(raw) == 0:
		return nil
	case json.Valid(raw):
		return raw
	}
	return string(raw)
}

func (p *Place) action(kind string, args map[string]any) *Action {
	args["agent"], args["workspace"] = p.Agent, p.Workspace
	if p.CWD != p.Workspace {
		args["cwd"] = p.CWD
	}
	if p.Subagent != "" {
		args["subagent"] = p.Subagent
	}
	return &Action{Kind: kind, Args: args}
}

// mcpName splits the name mcp__SERVER__TOOL of a tool of an MCP server. ok is
// false for any other name.
func mcpName(tool string) (server, name string, ok bool) {
	rest, ok := strings.CutPrefix(tool, "mcp__")
	if !ok {
		return "", "", false
	}
	server, name, ok = strings.Cut(rest, "__")
	return server, name, ok
}

// text returns the first of the members that is a non-empty text, or "" if
// there is none.
func text(in map[string]any, names ...string) string {
	for _, n := range names {
		if s, ok := in[n].(string); ok && s != "" {
			return s
		}
	}
	return ""
}

// tools maps the names of clients' tools, in lower case, to functions that return the
// action, or nil if the input lacks a member.
var tools = map[string]func(p *Place, in map[string]any) *Action{}

func init() {
	for names, f := range map[string]func(*Place, map[string]any) *Action{
		"bash shell run_shell_command local_shell exec_command unified_exec shell_command monitor run_in_terminal runterminalcommand": shellAction,
		"read notebookread read_file readfile view view_image":                                                                        fileAction(clientkind.FileRead),
		"glob grep grep_search ls list list_dir list_directory search_file_content":                                                   searchAction,
		"write write_file create_file createfile":                                                                                     fileAction(clientkind.FileWrite),
		"edit multiedit notebookedit replace replace_string_in_file insert_edit_into_file":                                            fileAction(clientkind.FileEdit),
		"apply_patch patch":                            patchAction,
		"webfetch web_fetch":                           fetchAction,
		"websearch web_search google_web_search":       searchWeb,
		"task agent subagent spawn_agent invoke_agent": subagentAction,
	} {
		for n := range strings.FieldsSeq(names) {
			tools[n] = f
		}
	}
}

func shellAction(p *Place, in map[string]any) *Action {
	command := text(in, "command", "cmd")
	if list, ok := in["command"].([]any); ok { // an argument list, of which each element is quoted
		command = joined(list)
	}
	if command == "" {
		return nil
	}
	at := *p
	if dir := text(in, "workdir", "working_directory", "cwd", "directory", "dir_path"); dir != "" {
		at.CWD = p.locate(p.CWD, dir).Path
	}
	l := at.Shell(command)
	a := at.action(clientkind.Shell, map[string]any{"command": command, "commands": l.Commands, "reads": l.Reads, "writes": l.Writes, "hosts": l.Hosts, "opaque": l.Opaque})
	a.MayChange = l.mayChange()
	return a
}

// joined returns the command line of an argument list, or "" if an argument is
// not a text.
func joined(list []any) string {
	var quoted []string
	for _, x := range list {
		s, ok := x.(string)
		if !ok {
			return ""
		}
		quoted = append(quoted, "'"+strings.ReplaceAll(s, "'", `'\''`)+"'")
	}
	return strings.Join(quoted, " ")
}

var pathMembers = []string{"file_path", "filePath", "absolute_path", "notebook_path", "path"}

func fileAction(kind string) func(*Place, map[string]any) *Action {
	return func(p *Place, in map[string]any) *Action {
		name := text(in, pathMembers...)
		if name == "" {
			return nil
		}
		at := p.locate(p.CWD, name)
		args := map[string]any{"paths": []Path{at}}
		if content, ok := in["content"].(string); ok && kind != clientkind.FileRead {
			args["content_digest"] = Digest([]byte(content))
		}
		a := p.action(kind, args)
		if kind != clientkind.FileRead {
			a.Files, a.result = []string{at.Path}, resultOf(in)
		}
		return a
	}
}

// searchAction is for tools that read below a folder, which is the current one if the
// input names none. A pattern that can lead out of the folder, or that names a secret
// file, is added as a path.
func searchAction(p *Place, in map[string]any) *Action {
	paths := []Path{p.locate(p.CWD, text(in, append(slices.Clone(pathMembers), "dir_path")...))}
	for _, pattern := range []string{text(in, "pattern"), text(in, "glob", "include", "include_pattern")} {
		if strings.HasPrefix(pattern, "/") || strings.HasPrefix(pattern, "~") || strings.Contains(pattern, "..") || secret(pattern) {
			paths = append(paths, p.locate(paths[0].Path, pattern))
		}
	}
	return p.action(clientkind.FileRead, map[string]any{"paths": paths})
}

var patchLine = regexp.MustCompile(`(?m)^\*\*\* (?:Add File|Update File|Delete File|Move to): (.+?)\s*$`)

// patchAction is for patches in Codex's format. A patch without a recognized file is not
// normalised.
func patchAction(p *Place, in map[string]any) *Action {
	patch := text(in, "command", "patch", "patchText", "input")
	if list, ok := in["command"].([]any); ok && len(list) > 0 {
		patch, _ = list[len(list)-1].(string)
	}
	var paths []Path
	var files []string
	seen := map[string]bool{} // a file that the patch names several times is read once
	for _, m := range patchLine.FindAllStringSubmatch(patch, -1) {
		at := p.locate(p.CWD, m[1])
		if paths = append(paths, at); !seen[at.Path] {
			seen[at.Path], files = true, append(files, at.Path)
		}
	}
	if len(paths) == 0 {
		return nil
	}
	a := p.action(clientkind.FileEdit, map[string]any{"paths": paths, "content_digest": Digest([]byte(patch))})
	a.Files, a.result = files, p.resultOfPatch(patch)
	return a
}

// plainURL matches a URL in which every parser finds the same host.
var plainURL = regexp.MustCompile(`^(?i:https?)://[A-Za-z0-9.-]+(:[0-9]+)?([/?#][A-Za-z0-9._~:/?#=&%+,;!$*()-]*)?$`)

// inPrompt returns the URL in a prompt of Gemini CLI, which reads each word with "://". It returns ""
// if there is not exactly one such word, or if it is not a plain URL.
func inPrompt(prompt string) (found string) {
	for _, word := range strings.FieldsFunc(prompt, func(r rune) bool { return unicode.IsSpace(r) || r == '\ufeff' }) {
		if !strings.Contains(word, "://") {
			continue
		}
		if found != "" || !plainURL.MatchString(word) {
			return ""
		}
		found = word
	}
	return found
}

// fetchAction is for tools that read a URL.
func fetchAction(p *Place, in map[string]any) *Action {
	raw := text(in, "url")
	if raw == "" {
		raw = inPrompt(text(in, "prompt"))
	}
	u, err := url.Parse(raw)
	if raw == "" || err != nil || u.Hostname() == "" {
		return nil
	}
	return p.action(clientkind.WebFetch, map[string]any{"url": raw, "host": strings.ToLower(u.Hostname())})
}

func searchWeb(p *Place, in map[string]any) *Action {
	query := text(in, "query")
	if query == "" {
		return nil
	}
	return p.action(clientkind.WebSearch, map[string]any{"query": query})
}

func subagentAction(p *Place, in map[string]any) *Action {
	prompt := text(in, "prompt", "message", "task")
	if prompt == "" {
		return nil
	}
	kind := text(in, "subagent_type", "agent_type", "agent_name", "agent")
	if kind == "" {
		kind = "general"
	}
	return p.action(clientkind.Subagent, map[string]any{"type": kind, "prompt_digest": Digest([]byte(prompt))})
}
