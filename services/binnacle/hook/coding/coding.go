// Package coding contains the built-in policy bundle for coding agents.
package coding

import (
	"embed"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

//go:embed coding.rego coding_test.rego
var files embed.FS

// The modes of the bundle.
const (
	Off    = "off"    // no rules
	Watch  = "watch"  // no rules; calls are recorded
	Guard  = "guard"  // denies harmful calls; escalates installs, connections and what cannot be parsed
	Strict = "strict" // denies harmful calls and what cannot be parsed; escalates all but reading and editing in the workspace
)

// Modes lists the modes, from the least strict to the strictest.
var Modes = []string{Off, Watch, Guard, Strict}

// Settings are the data of the bundle.
type Settings struct {
	Mode         string   `json:"mode"`
	Hosts        []string `json:"hosts"`         // hosts that may be contacted; ".example.com" is every host below example.com, "git:origin" a remote of git
	Installs     []string `json:"installs"`      // command lines that may install packages
	MCP          []string `json:"mcp"`           // kinds of tools of MCP servers that need no approval
	Programs     []string `json:"programs"`      // programs whose commands need no approval in strict mode, although they may change something
	Search       bool     `json:"search"`        // whether searching the web needs no approval
	Tools        []string `json:"tools"`         // the clients' tools that have no effects
	WriteFolders []string `json:"write_folders"` // folders outside of the workspace that may be written
}

// inert are tools of clients that only change the client's own state.
var inert = []string{"TodoWrite", "TodoRead", "todowrite", "todoread", "EnterPlanMode", "ExitPlanMode", "AskUserQuestion", "TaskCreate", "TaskGet", "TaskUpdate", "TaskList", "TaskOutput", "TaskStop", "BashOutput", "ToolSearch", "update_plan", "write_todos"}

// Default returns the settings of a mode. All lists are empty, except Tools. If there is no such
// mode, it returns an error that lists the modes.
func Default(mode string) (*Settings, error) {
	if !slices.Contains(Modes, mode) {
		return nil, fmt.Errorf("mode %q: want %s", mode, strings.Join(Modes, ", "))
	}
	return &Settings{Mode: mode, Hosts: []string{}, Installs: []string{}, MCP: []string{}, Programs: []string{}, Tools: inert, WriteFolders: []string{}}, nil
}

// Write writes the bundle with its tests to a new folder, so that the settings can be
// changed before it is built. It returns an error if the folder exists.
func Write(dir string, s *Settings) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	data, err := json.MarshalIndent(map[string]any{"binnacle": map[string]any{"coding": s}}, "", "  ")
	if err != nil {
		return err
	}
	out := map[string][]byte{"data.json": append(data, '\n')}
	for _, name := range []string{"coding.rego", "coding_test.rego"} {
		if out[name], err = files.ReadFile(name); err != nil {
			return err
		}
	}
	for name, b := range out {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			return err
		}
	}
	return nil
}
