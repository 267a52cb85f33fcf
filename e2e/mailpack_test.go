package e2e

import (
	"encoding/json"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emersion/go-smtp"

	"github.com/binnacle-mesh/binnacle/e2e/harness"
)

// mailServer is an SMTP server that stores the messages that it accepts.
type mailServer struct {
	mu    sync.Mutex
	mails []string // sender, recipients and text
}

func (s *mailServer) NewSession(*smtp.Conn) (smtp.Session, error) {
	return &mailSession{server: s}, nil
}

type mailSession struct {
	server *mailServer
	mail   string
}

func (s *mailSession) Mail(from string, _ *smtp.MailOptions) error { s.mail = from; return nil }
func (s *mailSession) Rcpt(to string, _ *smtp.RcptOptions) error   { s.mail += " " + to; return nil }
func (s *mailSession) Reset()                                      { s.mail = "" }
func (*mailSession) Logout() error                                 { return nil }
func (s *mailSession) Data(r io.Reader) error {
	body, err := io.ReadAll(r)
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	s.server.mails = append(s.server.mails, s.mail+"\n"+string(body))
	return err
}

// startMail starts an SMTP server and returns it with its address.
func startMail(t *testing.T) (*mailServer, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &mailServer{}
	srv := smtp.NewServer(s)
	srv.Domain = "mail.test"
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close() })
	return s, l.Addr().String()
}

// sendsMail shows that a call of mail.send sends nothing before its approval, and one message
// after it. s is the server to which the mesh must send.
func sendsMail(t *testing.T, m *harness.Mesh, s *mailServer) {
	t.Helper()
	cli(t, m, "principals", "register", "ann", "person")
	cli(t, m, "roles", "grant", "ann", "approver")
	r, err := m.DoHeader(t.Context(), "POST", "/api/v1/packs/mail.send", `{"to":["bob@mail.test"],"subject":"Tides","text":"High at noon."}`, map[string]string{"Prefer": "respond-async", "X-Binnacle-Session": "s-mail"})
	var call struct {
		CallID string `json:"call_id"`
		Reason string `json:"reason_code"`
	}
	if err != nil || r.Status != 202 || json.Unmarshal(r.Body, &call) != nil || call.Reason != "ESCALATE_MAIL" {
		t.Fatalf("%v %d %s", err, r.Status, r.Body)
	}
	sent := func() []string {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.mails
	}
	if n := len(sent()); n != 0 {
		t.Errorf("%d messages before the approval", n)
	}
	if out, err := m.As(m.TokenFor("ann", "approvals:vote")).CLI("approvals", "grant", call.CallID, "--reason", "seen"); err != nil {
		t.Fatal(out, err)
	}
	eventually(t, "the approved call ends", 30*time.Second, func() bool { return stateOf(t, m, call.CallID) == "succeeded" })
	if mails := sent(); len(mails) != 1 || !strings.HasPrefix(mails[0], "harbour@example.com bob@mail.test\n") || !strings.Contains(mails[0], "High at noon.") {
		t.Errorf("%q", mails)
	}
}
