package sessionrunner

import (
	"bufio"
	"encoding/base64"
	"slices"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/egress"
	"github.com/binnacle-mesh/binnacle/pkg/rpc"
	"github.com/binnacle-mesh/binnacle/pkg/seal"
	"github.com/binnacle-mesh/binnacle/pkg/secret"
	"github.com/binnacle-mesh/binnacle/schemas/mcprouter"
	events "github.com/binnacle-mesh/binnacle/schemas/sessionrunner"
)

// TestSecretFiles shows that the secrets of a server's files are opened with the key and for the
// connection that they were sealed to only, that no byte after them is lost, and which errors other
// lines have.
func TestSecretFiles(t *testing.T) {
	cfg := &mcprouter.ServerAdded{Files: []mcprouter.File{{Name: "A", Secret: "mcp.a"}, {Name: "B", Secret: "mcp.b"}}}
	f, err := filesOf(cfg)
	if err != nil {
		t.Fatal(err)
	}
	key, err := f.open("t", "conn-1")
	if err != nil {
		t.Fatal(err)
	}
	line := func(info, plain string) string {
		t.Helper()
		sealed, err := seal.To(strings.TrimSpace(string(key)), info, []byte(plain))
		if err != nil {
			t.Fatal(err)
		}
		return base64.StdEncoding.EncodeToString(sealed) + "\n"
	}
	info := secret.FilesInfo("t", "conn-1")
	for text, want := range map[string]string{ // part of the error
		line(info, `{"mcp.a":"1","mcp.b":"2"}`) + "rest": "",
		line(info, `{"mcp.a":"1"}`):                      "mcp.b is missing",
		line(info, `[]`):                                 "malformed",
		line(secret.FilesInfo("t", "conn-2"), `{}`):      "seal",
		line(secret.FilesInfo("u", "conn-1"), `{}`):      "seal",
		"no base64\n": "not base64",
		"":            "ended",
		strings.TrimSpace(line(info, `{"mcp.a":"1","mcp.b":"2"}`)): "ended",
	} {
		in := bufio.NewReaderSize(strings.NewReader(text), maxSealed)
		values, err := f.read(in)
		if want == "" {
			rest, _ := in.ReadString('\n')
			if err != nil || values["mcp.a"] != "1" || values["mcp.b"] != "2" || rest != "rest" {
				t.Errorf("%v %v, then %q", values, err, rest)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %s: %v", want, err)
		}
	}
	if got := f.environment(); !slices.Equal(got, []string{"A=/tmp/secret-mcp.a", "B=/tmp/secret-mcp.b"}) {
		t.Error(got)
	}
	if got := f.facts(); !slices.Equal(got, []string{"secret_file:mcp.a", "secret_file:mcp.b"}) {
		t.Error(got)
	}
	if _, err := filesOf(&mcprouter.ServerAdded{Files: []mcprouter.File{{Name: "A", Secret: "../a"}}}); rpc.CodeOf(err) != contract.CodeInvalidInput {
		t.Error("a path as the name of a secret", err)
	}
	if f, err := filesOf(&mcprouter.ServerAdded{}); f != nil || err != nil || f.facts() != nil || f.environment() != nil {
		t.Error(f, err)
	}
}

// TestProxyOf shows that a server gets no socket but that of its call's proxy, and none if its
// settings or the intent permit no host.
func TestProxyOf(t *testing.T) {
	hosts, none := &mcprouter.ServerAdded{Hosts: []string{"a.test"}}, &mcprouter.ServerAdded{}
	intent := &contract.ExecutionIntent{Egress: []string{"a.test"}}
	own := "/run/binnacle/egress/" + egress.SocketName("c-1")
	for _, x := range []struct {
		socket, authority string
		cfg               *mcprouter.ServerAdded
		intent            *contract.ExecutionIntent
		code              string
	}{
		{own, "PEM", hosts, intent, ""},
		{"", "", none, &contract.ExecutionIntent{}, ""},
		{own, "PEM", none, intent, contract.CodeDenied},
		{own, "PEM", hosts, &contract.ExecutionIntent{}, contract.CodeDenied},
		{"/run/containerd/containerd.sock", "PEM", hosts, intent, contract.CodeDenied},
		{"/run/binnacle/egress/" + egress.SocketName("c-2"), "PEM", hosts, intent, contract.CodeDenied},
		{egress.SocketName("c-1"), "PEM", hosts, intent, contract.CodeDenied},
		{own, "", hosts, intent, contract.CodeInvalidInput},
	} {
		e, err := proxyOf(&events.ServerStartRequest{CallID: "c-1", EgressSocket: x.socket, EgressAuthority: x.authority}, x.cfg, x.intent)
		if x.code == "" && (err != nil || (e == nil) != (x.socket == "")) || x.code != "" && rpc.CodeOf(err) != x.code {
			t.Errorf("%+v: %v %v", x, e, err)
		}
	}
}
