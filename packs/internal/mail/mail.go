// Package mail has the pack mail.send, which sends a message by SMTP.
package mail

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/mail"
	"net/textproto"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	gomail "github.com/wneessen/go-mail"

	"github.com/binnacle-mesh/binnacle/packs/internal/dial"
	"github.com/binnacle-mesh/binnacle/packs/internal/pack"
)

// loginSecret is the name of the secret with the login to the server, USER:PASSWORD.
const loginSecret = "smtp-login"

// Limits of a message.
const (
	maxAttachment = 8 << 20 // bytes of all attachments
	sendTime      = 60 * time.Second
)

// Input is the input of mail.send.
type Input struct {
	To          []string          `json:"to"`
	Cc          []string          `json:"cc"`
	Bcc         []string          `json:"bcc"`
	ReplyTo     string            `json:"reply_to"`
	Subject     string            `json:"subject"`
	Text        string            `json:"text"`
	HTML        string            `json:"html"`
	Attachments []Attachment      `json:"attachments"`
	Secrets     map[string]string `json:"_secrets"`
}

// Attachment is a file of a message.
type Attachment struct {
	Name    string `json:"name"`
	Content string `json:"content_b64"`
}

// Output is the output of mail.send.
type Output struct {
	MessageID  string `json:"message_id"`
	Recipients int    `json:"recipients"`
}

// Send sends one message through the server and from the address that the environment
// variables SMTP_URL and MAIL_FROM name. The server has accepted the message for all
// recipients when Send returns without an error.
func Send(ctx context.Context, in Input) (Output, error) {
	m, err := message(in)
	if err != nil {
		return Output{}, err
	}
	c, err := client(os.Getenv("SMTP_URL"), in.Secrets[loginSecret])
	if err != nil {
		return Output{}, err
	}
	ctx, stop := context.WithTimeout(ctx, sendTime)
	defer stop()
	if err := c.DialAndSendWithContext(ctx, m); err != nil {
		return Output{}, failure(err)
	}
	return Output{MessageID: m.GetMessageID(), Recipients: len(in.To) + len(in.Cc) + len(in.Bcc)}, nil
}

// message returns the message of a call.
func message(in Input) (*gomail.Msg, error) {
	m := gomail.NewMsg()
	if err := m.From(os.Getenv("MAIL_FROM")); err != nil {
		return nil, &pack.Error{Code: pack.HandlerFailed, Message: "MAIL_FROM: not an address of a sender", Hint: "set MAIL_FROM in the env of the pack's manifest"}
	}
	for _, x := range []struct {
		pointer string
		of      []string
		set     func(...string) error
	}{{"/to", in.To, m.To}, {"/cc", in.Cc, m.Cc}, {"/bcc", in.Bcc, m.Bcc}} {
		for i, a := range x.of {
			if _, err := mail.ParseAddress(a); err != nil {
				return nil, pack.Invalid(x.pointer+"/"+strconv.Itoa(i), "%q is not an address", a)
			}
		}
		if err := x.set(x.of...); err != nil {
			return nil, pack.Invalid(x.pointer, "%v", err)
		}
	}
	if in.ReplyTo != "" {
		if err := m.ReplyTo(in.ReplyTo); err != nil {
			return nil, pack.Invalid("/reply_to", "%q is not an address", in.ReplyTo)
		}
	}
	if strings.ContainsAny(in.Subject, "\r\n") {
		return nil, pack.Invalid("/subject", "the subject has a line break")
	}
	m.Subject(in.Subject)
	m.SetMessageID()
	m.SetDate()
	switch {
	case in.Text == "" && in.HTML == "":
		return nil, pack.Invalid("/text", "give text, html or both")
	case in.Text == "":
		m.SetBodyString(gomail.TypeTextHTML, in.HTML)
	default:
		m.SetBodyString(gomail.TypeTextPlain, in.Text)
		if in.HTML != "" {
			m.AddAlternativeString(gomail.TypeTextHTML, in.HTML)
		}
	}
	return m, attach(m, in.Attachments)
}

// attach adds files to a message.
func attach(m *gomail.Msg, files []Attachment) error {
	left := maxAttachment
	for i, a := range files {
		at := "/attachments/" + strconv.Itoa(i)
		body, err := pack.Bytes(at+"/content_b64", a.Content, left)
		if err != nil {
			return err
		}
		left -= len(body)
		if strings.ContainsAny(a.Name, "\r\n\"/\\") || a.Name == "" {
			return pack.Invalid(at+"/name", "%q is not a file name", a.Name)
		}
		if err := m.AttachReader(a.Name, strings.NewReader(string(body))); err != nil {
			return err
		}
	}
	return nil
}

// client returns a client of the server at an address of the form smtp://HOST:PORT (with
// STARTTLS), smtps://HOST:PORT (TLS from the beginning) or smtp+plain://HOST:PORT (without
// TLS; no login is sent).
func client(at, login string) (*gomail.Client, error) {
	u, err := url.Parse(at)
	if err != nil || u.Host == "" || u.User != nil {
		return nil, &pack.Error{Code: pack.HandlerFailed, Message: "SMTP_URL: not of the form smtp://HOST:PORT, smtps://HOST:PORT or smtp+plain://HOST:PORT", Hint: "set SMTP_URL in the env of the pack's manifest"}
	}
	roots, err := dial.Roots()
	if err != nil {
		return nil, err
	}
	conf := &tls.Config{ServerName: u.Hostname(), MinVersion: tls.VersionTLS12, RootCAs: roots}
	options := []gomail.Option{gomail.WithDialContextFunc(open(u.Scheme, conf)), gomail.WithTimeout(sendTime), gomail.WithTLSConfig(conf), gomail.WithHELO("binnacle.invalid")}
	port := map[string]int{"smtp": 587, "smtps": 465, "smtp+plain": 25}[u.Scheme]
	if p := u.Port(); p != "" {
		if port, err = strconv.Atoi(p); err != nil {
			return nil, pack.Fail(pack.HandlerFailed, "SMTP_URL: port %q", p)
		}
	}
	options = append(options, gomail.WithPort(port))
	switch u.Scheme {
	case "smtp":
		options = append(options, gomail.WithTLSPolicy(gomail.TLSMandatory))
	case "smtps":
		options = append(options, gomail.WithSSL())
	case "smtp+plain":
		options = append(options, gomail.WithTLSPolicy(gomail.NoTLS))
	default:
		return nil, pack.Fail(pack.HandlerFailed, "SMTP_URL: scheme %q is not smtp, smtps or smtp+plain", u.Scheme)
	}
	if user, password, ok := strings.Cut(login, ":"); ok && u.Scheme != "smtp+plain" {
		mechanism := gomail.SMTPAuthAutoDiscover
		if u.Scheme == "smtps" { // over a connection from a DialContextFunc, the automatic choice assumes no encryption and never selects PLAIN
			mechanism = gomail.SMTPAuthPlain
		}
		options = append(options, gomail.WithSMTPAuth(mechanism), gomail.WithUsername(user), gomail.WithPassword(password))
	}
	return gomail.NewClient(u.Hostname(), options...)
}

// open returns the function that opens a connection to the server, with TLS for smtps. The
// connection is usable for sendTime, because the client does not limit the time in which the
// server greets it.
func open(scheme string, conf *tls.Config) gomail.DialContextFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial.Context(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		if err := c.SetDeadline(time.Now().Add(sendTime)); err != nil {
			return nil, err
		}
		if scheme == "smtps" {
			return tls.Client(c, conf), nil
		}
		return c, nil
	}
}

// loginRefused holds the reply codes for a login that is refused or missing (RFC 4954,
// section 6).
var loginRefused = []int{530, 534, 535, 538}

// failure returns the pack's error for an error of the SMTP client.
func failure(err error) error {
	var own *pack.Error
	var e *gomail.SendError
	var reply *textproto.Error
	switch {
	case errors.As(err, &own):
		return own
	case errors.Is(err, context.DeadlineExceeded), os.IsTimeout(err):
		return pack.Fail(pack.Timeout, "the mail server did not respond within %v", sendTime)
	case errors.As(err, &reply) && slices.Contains(loginRefused, reply.Code), errors.As(err, &e) && slices.Contains(loginRefused, e.ErrorCode()):
		return &pack.Error{Code: pack.CredentialInvalid, Message: "the mail server refused the login", Hint: "store USER:PASSWORD with `binnacle secret put " + loginSecret + "`"}
	case errors.As(err, &e) && e.Reason == gomail.ErrSMTPRcptTo && !e.IsTemp():
		return pack.Invalid("/to", "the mail server refused a recipient: %v", e)
	}
	return pack.Fail(pack.HandlerFailed, "the mail server failed: %v", err)
}
