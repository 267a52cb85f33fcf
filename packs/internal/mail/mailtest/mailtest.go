// Package mailtest starts an SMTP server for tests.
package mailtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"
)

// Server is an SMTP server that stores messages in memory. It accepts the login ann:harbour, which
// it requires on encrypted connections, and refuses recipients of the domain gone.test.
type Server struct {
	mu    sync.Mutex
	mails []Mail
}

// Mail is a message that a server has accepted. TLS reports whether the connection was
// encrypted.
type Mail struct {
	From string
	To   []string
	Body string
	TLS  bool
}

// Mails returns the messages that the server has accepted.
func (s *Server) Mails() []Mail {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Mail(nil), s.mails...)
}

// NewSession implements smtp.Backend.
func (s *Server) NewSession(c *smtp.Conn) (smtp.Session, error) {
	_, encrypted := c.TLSConnectionState()
	return &session{server: s, m: Mail{TLS: encrypted}}, nil
}

type session struct {
	server *Server
	m      Mail
	user   string
}

func (*session) AuthMechanisms() []string { return []string{sasl.Plain} }

func (s *session) Auth(string) (sasl.Server, error) {
	return sasl.NewPlainServer(func(_, user, password string) error {
		if user != "ann" || password != "harbour" {
			return smtp.ErrAuthFailed
		}
		s.user = user
		return nil
	}), nil
}

func (s *session) Mail(from string, _ *smtp.MailOptions) error {
	if s.m.TLS && s.user == "" {
		return &smtp.SMTPError{Code: 530, EnhancedCode: smtp.EnhancedCode{5, 7, 0}, Message: "log in first"}
	}
	s.m.From = from
	return nil
}

func (s *session) Rcpt(to string, _ *smtp.RcptOptions) error {
	if strings.HasSuffix(to, "@gone.test") {
		return &smtp.SMTPError{Code: 550, EnhancedCode: smtp.EnhancedCode{5, 1, 1}, Message: "no such mailbox"}
	}
	s.m.To = append(s.m.To, to)
	return nil
}

func (s *session) Data(r io.Reader) error {
	body, err := io.ReadAll(r)
	s.m.Body = string(body)
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	s.server.mails = append(s.server.mails, s.m)
	return err
}

func (s *session) Reset()        { s.m = Mail{TLS: s.m.TLS} }
func (s *session) Logout() error { return nil }

// Start starts a server at 127.0.0.1, with TLS from the beginning (implicit) or by STARTTLS
// (explicit), or without TLS if both are false, and returns it with its HOST:PORT. It sets
// TLS_AUTHORITIES to the server's certificate.
func Start(t *testing.T, implicit, explicit bool) (*Server, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("TLS_AUTHORITIES", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	s := &Server{}
	srv := smtp.NewServer(s)
	srv.Domain = "mail.test"
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	conf := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	if explicit {
		srv.TLSConfig = conf
	}
	if implicit {
		l = tls.NewListener(l, conf)
	}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close() })
	return s, l.Addr().String()
}
