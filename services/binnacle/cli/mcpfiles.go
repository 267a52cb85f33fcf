package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// listedServer is an MCP server in a file of another program.
type listedServer struct {
	name, url string // url is empty if the server is started as a subprocess
	sse       bool
	headers   []string // names of the headers that mcpServers gives or a server.json requires
	command   string   // starts the server as a subprocess
	args, env []string // of command; an element of env is NAME=VALUE
}

// leaveOut returns why the server cannot be added, or "". given and image report whether the
// command line has headers and an image.
func (s *listedServer) leaveOut(given, image bool) string {
	switch {
	case s.url == "" && s.command != "" && image:
		return ""
	case s.url == "" && s.command != "":
		return "started as a subprocess: name the image that contains " + s.command + " with --image"
	case s.url == "":
		return "started as a subprocess"
	case strings.ContainsAny(s.url, "{}"):
		return "its URL " + s.url + " has variables: add it with NAME and URL"
	case len(s.headers) > 0 && !given:
		return "has headers (" + strings.Join(s.headers, ", ") + "): store their secrets in the vault and add it with --header"
	}
	return ""
}

// readServers returns the servers of a configuration with the member mcpServers, sorted by name, or
// the server that a server.json of the official registry describes.
func readServers(b []byte) ([]listedServer, error) {
	var doc struct {
		Servers map[string]struct {
			URL     string            `json:"url"`
			HTTPURL string            `json:"httpUrl"` // Gemini CLI
			Type    string            `json:"type"`
			Headers map[string]string `json:"headers"`
			Command string            `json:"command"`
			Args    []string          `json:"args"`
			Env     map[string]string `json:"env"`
		} `json:"mcpServers"`
		registered
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		return nil, fmt.Errorf("want a JSON object without comments: %w", err)
	}
	var out []listedServer
	for name, s := range doc.Servers {
		url := s.HTTPURL
		if url == "" {
			url = s.URL
		}
		l := listedServer{name: strings.ToLower(name), url: url, sse: s.Type == "sse", headers: slices.Sorted(maps.Keys(s.Headers))}
		if url == "" {
			l.command, l.args = s.Command, s.Args
			for _, v := range slices.Sorted(maps.Keys(s.Env)) {
				l.env = append(l.env, v+"="+s.Env[v])
			}
		}
		out = append(out, l)
	}
	slices.SortFunc(out, func(a, b listedServer) int { return strings.Compare(a.name, b.name) })
	for i := 1; i < len(out); i++ {
		if out[i].name == out[i-1].name {
			return nil, fmt.Errorf("two servers have the name %s in lower case: rename one", out[i].name)
		}
	}
	if len(out) == 0 && doc.Name != "" {
		out = append(out, doc.server())
	}
	if len(out) == 0 {
		return nil, errors.New("want servers in the member mcpServers, or the members name and remotes of a server.json")
	}
	return out, nil
}

// registered is a server.json of the official registry, as "server.json Format
// Specification" describes it.
type registered struct {
	Name    string `json:"name"` // such as io.github.owner/weather
	Remotes []struct {
		Type    string `json:"type"` // streamable-http or sse
		URL     string `json:"url"`
		Headers []struct {
			Name     string `json:"name"`
			Required bool   `json:"isRequired"`
		} `json:"headers"`
	} `json:"remotes"`
}

// server returns the server with the first streamable HTTP remote or, if there is none,
// the first remote.
func (r *registered) server() listedServer {
	s := listedServer{name: strings.ToLower(r.Name[strings.LastIndex(r.Name, "/")+1:])}
	s.name = strings.ReplaceAll(s.name, ".", "-")
	for i, x := range r.Remotes {
		if i > 0 && (x.Type == "sse" || !s.sse) {
			continue
		}
		s.url, s.sse, s.headers = x.URL, x.Type == "sse", nil
		for _, h := range x.Headers {
			if h.Required {
				s.headers = append(s.headers, h.Name)
			}
		}
	}
	return s
}
