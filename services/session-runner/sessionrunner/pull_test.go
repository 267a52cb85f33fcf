package sessionrunner

import (
	"fmt"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/execute"
	"github.com/binnacle-mesh/binnacle/services/session-runner/internal/containerd"
)

// TestPullRefused checks the codes of pulls that fail before the registry is reached: a reference that
// is not accepted, and a call without a proxy, which never connects in another way; and that of a
// request that the egress-broker denied.
func TestPullRefused(t *testing.T) {
	g, err := containerd.ParseRegistries([]string{"registry.test"}, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	s, pinned := &Service{from: g}, "/tools@sha256:"+strings.Repeat("0a", 32)
	for _, c := range []struct {
		args imageArgs
		code string
	}{
		{imageArgs{Ref: "other.test" + pinned}, contract.CodeInvalidInput},
		{imageArgs{Ref: "registry.test/tools:latest"}, contract.CodeImageUnpinned},
		{imageArgs{Ref: "registry.test" + pinned}, contract.CodeEgressRefused},
		{imageArgs{Ref: "registry.test/tools:latest", Unpinned: true}, contract.CodeEgressRefused},
	} {
		_, usage, err := pull(t.Context(), s, &execute.Work{Intent: &contract.ExecutionIntent{}}, &c.args)
		if err == nil || usage.EgressBytes != 0 {
			t.Fatalf("%+v: %+v %v", c.args, usage, err)
		}
		if res := failedImages(kindImagePull, err); res.ErrorCode != c.code {
			t.Errorf("%+v: %s %s, want %s", c.args, res.ErrorCode, res.ErrorMessage, c.code)
		}
	}
	denied := fmt.Errorf("pull: %w", &containerd.DeniedError{Host: "cdn.test:443", Reason: "host_denied"})
	if res := failedImages(kindImagePull, denied); res.ErrorCode != contract.CodeEgressRefused || !strings.Contains(res.ErrorMessage, "session-runner.registry_hosts") {
		t.Errorf("%+v", res)
	}
}

// TestImageTools checks that the document of image.pull, and of no other tool, has rules for the
// registries and the further hosts.
func TestImageTools(t *testing.T) {
	g, err := containerd.ParseRegistries([]string{"registry.test"}, []string{"cdn.test:8443"}, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range imageToolsOf(g) {
		var hosts []string
		for _, r := range tool.EgressRules {
			hosts = append(hosts, fmt.Sprint(r.Mode, " ", r.Host, ":", r.Port))
		}
		want := map[string]string{kindImagePull: "passthrough registry.test:443, passthrough cdn.test:8443"}[tool.Kind]
		if strings.Join(hosts, ", ") != want {
			t.Errorf("%s: %q, want %q", tool.Kind, hosts, want)
		}
	}
	for _, tool := range imageTools {
		if len(tool.EgressRules) > 0 {
			t.Errorf("%s has rules without a configuration", tool.Kind)
		}
	}
}
