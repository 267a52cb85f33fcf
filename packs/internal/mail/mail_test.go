package mail

import (
	"errors"
	"strings"
	"testing"

	"github.com/binnacle-mesh/binnacle/packs/internal/mail/mailtest"
	"github.com/binnacle-mesh/binnacle/packs/internal/pack"
)

// TestSend sends a message to a local server without TLS, with STARTTLS and with TLS. The
// message must not name the hidden recipients.
func TestSend(t *testing.T) {
	t.Setenv("MAIL_FROM", "Harbour <harbour@mail.test>")
	for scheme, encrypted := range map[string]bool{"smtp+plain": false, "smtp": true, "smtps": true} {
		s, addr := mailtest.Start(t, scheme == "smtps", scheme == "smtp")
		t.Setenv("SMTP_URL", scheme+"://"+addr)
		out, err := Send(t.Context(), Input{To: []string{"Bob <bob@mail.test>"}, Cc: []string{"eve@mail.test"}, Bcc: []string{"ann@mail.test"}, Subject: "Tides ☾", Text: "High at noon.\n.\nend", HTML: "<p>High</p>",
			Attachments: []Attachment{{"tides.csv", "ZGF5LGhlaWdodAo="}}, Secrets: map[string]string{loginSecret: "ann:harbour"}})
		if err != nil || out.Recipients != 3 || out.MessageID == "" {
			t.Fatalf("%s: %+v %v", scheme, out, err)
		}
		m := s.Mails()[0]
		if m.TLS != encrypted || m.From != "harbour@mail.test" || len(m.To) != 3 {
			t.Errorf("%s: %+v", scheme, m)
		}
		for _, want := range []string{"High at noon.", "<p>High</p>", "tides.csv", "ZGF5LGhlaWdodAo=", "Subject: =?UTF-8?q?Tides_", "Message-ID: " + out.MessageID} {
			if !strings.Contains(m.Body, want) {
				t.Errorf("%s: no %q in\n%s", scheme, want, m.Body)
			}
		}
		if strings.Contains(m.Body, "ann@mail.test") {
			t.Errorf("%s: the message names a hidden recipient", scheme)
		}
	}
}

// TestFailures checks the code and the pointer of each failure, that no error message
// contains a refused password, and that nothing is sent to a server without TLS or with an
// untrusted certificate.
func TestFailures(t *testing.T) {
	s, addr := mailtest.Start(t, false, true)
	plain, plainAddr := mailtest.Start(t, false, false)
	_, wrong := mailtest.Start(t, false, true) // TLS_AUTHORITIES now contains its certificate and no other
	good := Input{To: []string{"bob@mail.test"}, Subject: "s", Text: "t", Secrets: map[string]string{loginSecret: "ann:harbour"}}
	with := func(change func(*Input)) Input {
		in := good
		change(&in)
		return in
	}
	for name, c := range map[string]struct {
		url, from     string
		in            Input
		code, pointer string
	}{
		"no server":           {"", "a@b.test", good, pack.HandlerFailed, ""},
		"a password":          {"smtp://a:b@mail.test", "a@b.test", good, pack.HandlerFailed, ""},
		"scheme":              {"http://mail.test", "a@b.test", good, pack.HandlerFailed, ""},
		"no sender":           {"smtp://" + wrong, "", good, pack.HandlerFailed, ""},
		"recipient":           {"smtp://" + wrong, "a@b.test", with(func(in *Input) { in.To = []string{"bob@mail.test", "bob"} }), pack.InvalidInput, "/to/1"},
		"two in one":          {"smtp://" + wrong, "a@b.test", with(func(in *Input) { in.Cc = []string{"a@b.test, c@d.test"} }), pack.InvalidInput, "/cc/0"},
		"reply":               {"smtp://" + wrong, "a@b.test", with(func(in *Input) { in.ReplyTo = "x\r\nBcc: y@z.test" }), pack.InvalidInput, "/reply_to"},
		"a header in subject": {"smtp://" + wrong, "a@b.test", with(func(in *Input) { in.Subject = "x\r\nBcc: y@z.test" }), pack.InvalidInput, "/subject"},
		"no body":             {"smtp://" + wrong, "a@b.test", with(func(in *Input) { in.Text = "" }), pack.InvalidInput, "/text"},
		"file name":           {"smtp://" + wrong, "a@b.test", with(func(in *Input) { in.Attachments = []Attachment{{"../x", ""}} }), pack.InvalidInput, "/attachments/0/name"},
		"not base64":          {"smtp://" + wrong, "a@b.test", with(func(in *Input) { in.Attachments = []Attachment{{"x", "?"}} }), pack.InvalidInput, "/attachments/0/content_b64"},
		"login":               {"smtp://" + wrong, "a@b.test", with(func(in *Input) { in.Secrets = map[string]string{loginSecret: "ann:ebb-and-flow"} }), pack.CredentialInvalid, ""},
		"no login":            {"smtp://" + wrong, "a@b.test", with(func(in *Input) { in.Secrets = nil }), pack.CredentialInvalid, ""},
		"unknown recipient":   {"smtp://" + wrong, "a@b.test", with(func(in *Input) { in.To = []string{"bob@gone.test"} }), pack.InvalidInput, "/to"},
		"certificate":         {"smtp://" + addr, "a@b.test", good, pack.HandlerFailed, ""},
		"no TLS":              {"smtp://" + plainAddr, "a@b.test", good, pack.HandlerFailed, ""},
		"not reachable":       {"smtp://127.0.0.1:1", "a@b.test", good, pack.HandlerFailed, ""},
	} {
		t.Setenv("SMTP_URL", c.url)
		t.Setenv("MAIL_FROM", c.from)
		out, err := Send(t.Context(), c.in)
		var e *pack.Error
		if !errors.As(err, &e) || e.Code != c.code || e.Pointer != c.pointer || strings.Contains(e.Message, "ebb-and-flow") {
			t.Errorf("%s: %+v %v", name, out, err)
		}
	}
	if len(s.Mails())+len(plain.Mails()) != 0 {
		t.Error("a message was sent to a server without a valid certificate")
	}
}
