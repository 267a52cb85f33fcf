package calls

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/binnacle-mesh/binnacle/pkg/catalog"
	"github.com/binnacle-mesh/binnacle/pkg/clientkind"
	"github.com/binnacle-mesh/binnacle/pkg/contentkeys"
	"github.com/binnacle-mesh/binnacle/pkg/llm"
	"github.com/binnacle-mesh/binnacle/pkg/propose"
	"github.com/binnacle-mesh/binnacle/services/gateway/internal/auth"
)

// TestSubject checks in which cases a call about a data subject is refused, and that a call that
// erases a data subject names it by its pseudonym and not by its name.
func TestSubject(t *testing.T) {
	mode := llm.CaptureEncrypted
	s := &Maker{Tools: &catalog.Catalog{}, Capture: func() string { return mode }, Pseudonym: func(_ context.Context, tenant, subject string) (string, error) {
		return tenant + "'s pseudonym of " + subject[:1], nil
	}}
	var within time.Duration
	about := func(kind, subject string) (propose.Request, error) {
		r := propose.Request{Kind: kind, ReportWithin: within}
		err := s.encrypted(http.Header{SubjectHeader: {subject}}, &r)
		return r, err
	}
	for _, c := range []struct {
		mode, kind, subject string
		ok                  bool
	}{
		{llm.CaptureEncrypted, llm.Chat, "ann", true}, {llm.CaptureEncrypted, llm.Chat, strings.Repeat("a", 129), false},
		{llm.CapturePlain, llm.Chat, "ann", false}, {llm.CaptureOff, llm.Chat, "ann", false},
		{llm.CaptureEncrypted, "vault.list", "ann", false}, {llm.CaptureEncrypted, "tool.unknown", "ann", false},
		{llm.CapturePlain, contentkeys.KindEraseSubject, "ann", true},
	} {
		mode = c.mode
		if _, err := about(c.kind, c.subject); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c, err)
		}
	}
	mode, within = llm.CaptureEncrypted, time.Second
	for _, c := range []struct {
		kind, subject string
		encrypt       bool
	}{{"tool.unknown", "", true}, {"tool.unknown", "ann", true}, {clientkind.Shell, "", false}, {clientkind.Shell, "ann", true}} {
		if r, err := about(c.kind, c.subject); err != nil || r.Encrypt != c.encrypt || r.Key.Subject != c.subject {
			t.Errorf("a call that its caller executes, %+v: %v %v", c, r, err)
		}
	}
	args, err := s.named(t.Context(), http.Header{SubjectHeader: {"ann"}}, &auth.Caller{Tenant: "t"}, contentkeys.KindEraseSubject, []byte(`{"reason":"r"}`))
	if err != nil || string(args) != `{"reason":"r","subject":"t's pseudonym of a"}` {
		t.Error(string(args), err)
	}
	for kind, args := range map[string]string{contentkeys.KindEraseSubject: `{"subject":"other"}`, contentkeys.KindEraseTenant: `{}`} {
		got, err := s.named(t.Context(), http.Header{SubjectHeader: {"ann"}}, &auth.Caller{Tenant: "t"}, kind, []byte(args))
		if kind == contentkeys.KindEraseTenant && (err != nil || string(got) != args) || kind == contentkeys.KindEraseSubject && err == nil {
			t.Errorf("%s: %s %v", kind, got, err)
		}
	}
}
