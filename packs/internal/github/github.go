// Package github has the packs github.*, which use GitHub's REST API
// (docs.github.com/rest, version 2022-11-28) or another server that implements it.
package github

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/binnacle-mesh/binnacle/packs/internal/pack"
	"github.com/binnacle-mesh/binnacle/packs/internal/web"
)

// TokenSecret is the name of the secret with the token.
const TokenSecret = "github-token"

const maxResponse = 8 << 20

// Common are the arguments that every pack has.
type Common struct {
	Repo    string            `json:"repo"`
	Secrets map[string]string `json:"_secrets"`
}

var repoRE = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,100}/[A-Za-z0-9_.-]{1,100}$`)

// call sends a request for a repository, and decodes the response into out.
func (c *Common) call(ctx context.Context, method, path string, in, out any) error {
	owner, name, _ := strings.Cut(c.Repo, "/")
	if !repoRE.MatchString(c.Repo) || strings.Trim(owner, ".") == "" || strings.Trim(name, ".") == "" {
		return pack.Invalid("/repo", "%q is not of the form OWNER/NAME", c.Repo)
	}
	base := os.Getenv("GITHUB_API_URL")
	if base == "" {
		base = "https://api.github.com"
	}
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return err
		}
	}
	r, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(base, "/")+"/repos/"+c.Repo+path, bytes.NewReader(body))
	if err != nil {
		return pack.Fail(pack.HandlerFailed, "GITHUB_API_URL: %v", err)
	}
	r.Header.Set("Accept", "application/vnd.github+json")
	r.Header.Set("X-GitHub-Api-Version", "2022-11-28")
	r.Header.Set("User-Agent", "binnacle-github")
	if token := c.Secrets[TokenSecret]; token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	client := web.Client()
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse } // a redirect would carry the token to another host
	resp, answer, cut, err := web.Do(client, r, maxResponse)
	if err != nil {
		return err
	}
	if cut {
		return pack.Fail(pack.ResourceExhausted, "the response has more than %d bytes", maxResponse)
	}
	if resp.StatusCode/100 != 2 {
		return failure(resp, answer, c.Repo)
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return pack.Fail(pack.HandlerFailed, "the response of GitHub is not JSON: %v", err)
	}
	return nil
}

// failure returns the error for a response whose status is not 2xx.
func failure(resp *http.Response, body []byte, repo string) error {
	var doc struct{ Message string }
	_ = json.Unmarshal(body, &doc) // without a JSON body, only the status is reported
	e := pack.Fail(pack.HandlerFailed, "GitHub responded with status %d: %s", resp.StatusCode, doc.Message)
	switch {
	case resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusForbidden && resp.Header.Get("X-Ratelimit-Remaining") == "0":
		e.RetryAfterMS, e.Hint = retryAfter(resp.Header), "the rate limit is used up; call again later"
	case resp.StatusCode == http.StatusUnauthorized, resp.StatusCode == http.StatusForbidden:
		e.Code, e.Hint = pack.CredentialInvalid, "the secret "+TokenSecret+" lacks a permission, or was revoked"
	case resp.StatusCode == http.StatusNotFound, resp.StatusCode == http.StatusGone:
		e.Code, e.Hint = pack.InvalidInput, "repository "+repo+" or the object in it does not exist, or the token may not see it"
	case resp.StatusCode == http.StatusConflict:
		e.Code = pack.SchemaMismatch
	case resp.StatusCode == http.StatusUnprocessableEntity:
		e.Code = pack.InvalidInput
	}
	return e
}

// retryAfter returns the time after which a request may be repeated, in milliseconds.
// It is one minute if the header fields do not state it.
func retryAfter(h http.Header) int64 {
	if s, err := strconv.ParseInt(h.Get("Retry-After"), 10, 32); err == nil {
		return s * 1000
	}
	if at, err := strconv.ParseInt(h.Get("X-Ratelimit-Reset"), 10, 64); err == nil {
		return max(0, time.Until(time.Unix(at, 0)).Milliseconds())
	}
	return 60_000
}

// Created is the output of the packs that create something.
type Created struct {
	ID      int64  `json:"id"`
	Number  int    `json:"number"`
	HTMLURL string `json:"html_url"`
}

// IssueInput is the input of github.issue.create.
type IssueInput struct {
	Common
	Title  string   `json:"title"`
	Body   string   `json:"body"`
	Labels []string `json:"labels"`
}

// IssueCreate opens an issue.
func IssueCreate(ctx context.Context, in IssueInput) (out Created, err error) {
	doc := map[string]any{"title": in.Title, "body": in.Body}
	if len(in.Labels) > 0 {
		doc["labels"] = in.Labels
	}
	err = in.call(ctx, http.MethodPost, "/issues", doc, &out)
	return out, err
}

// ListInput is the input of github.issue.list.
type ListInput struct {
	Common
	State  string   `json:"state"`
	Labels []string `json:"labels"`
	Limit  int      `json:"limit"`
}

// Issue holds the members of an issue that github.issue.list and github.issue.get return.
type Issue struct {
	Number  int      `json:"number"`
	Title   string   `json:"title"`
	State   string   `json:"state"`
	User    string   `json:"user"`
	Labels  []string `json:"labels"`
	HTMLURL string   `json:"html_url"`
}

// issueDoc is an issue as GitHub's REST API returns it. Pull is not nil if the issue is a pull
// request.
type issueDoc struct {
	Number   int
	Title    string
	Body     string
	State    string
	User     struct{ Login string }
	Labels   []struct{ Name string }
	Comments int
	HTMLURL  string    `json:"html_url"`
	Pull     *struct{} `json:"pull_request"`
}

// issue returns d as an Issue.
func (d *issueDoc) issue() Issue {
	i := Issue{Number: d.Number, Title: d.Title, State: d.State, User: d.User.Login, HTMLURL: d.HTMLURL, Labels: []string{}}
	for _, l := range d.Labels {
		i.Labels = append(i.Labels, l.Name)
	}
	return i
}

// GetInput is the input of github.issue.get.
type GetInput struct {
	Common
	Number int `json:"issue_number"`
}

// GetOutput is the output of github.issue.get.
type GetOutput struct {
	Issue
	Body     string `json:"body"`
	Comments int    `json:"comments"`
}

// IssueGet returns an issue. It returns an error if the number is that of a pull request, which
// GitHub's API counts as an issue.
func IssueGet(ctx context.Context, in GetInput) (GetOutput, error) {
	var doc issueDoc
	if err := in.call(ctx, http.MethodGet, fmt.Sprintf("/issues/%d", in.Number), nil, &doc); err != nil {
		return GetOutput{}, err
	}
	if doc.Pull != nil {
		e := pack.Invalid("/issue_number", "%d is a pull request", in.Number)
		e.Hint = "call github.pr.get"
		return GetOutput{}, e
	}
	return GetOutput{Issue: doc.issue(), Body: doc.Body, Comments: doc.Comments}, nil
}

// ListOutput is the output of github.issue.list.
type ListOutput struct {
	Issues []Issue `json:"issues"`
	Count  int     `json:"count"`
}

// IssueList lists issues, the newest first. Pull requests are not in the list.
func IssueList(ctx context.Context, in ListInput) (ListOutput, error) {
	q := url.Values{"state": {"open"}, "per_page": {"100"}}
	if in.State != "" {
		q.Set("state", in.State)
	}
	if len(in.Labels) > 0 {
		q.Set("labels", strings.Join(in.Labels, ","))
	}
	limit := in.Limit
	if limit == 0 {
		limit = 30
	}
	out := ListOutput{Issues: []Issue{}}
	for page := 1; len(out.Issues) < limit; page++ {
		q.Set("page", strconv.Itoa(page))
		var doc []issueDoc
		if err := in.call(ctx, http.MethodGet, "/issues?"+q.Encode(), nil, &doc); err != nil {
			return out, err
		}
		for _, d := range doc {
			if d.Pull != nil || len(out.Issues) == limit {
				continue
			}
			out.Issues = append(out.Issues, d.issue())
		}
		if len(doc) < 100 {
			break
		}
	}
	out.Count = len(out.Issues)
	return out, nil
}

// CommentInput is the input of github.issue.comment.
type CommentInput struct {
	Common
	Number int    `json:"issue_number"`
	Body   string `json:"body"`
}

// IssueComment adds a comment to an issue or a pull request.
func IssueComment(ctx context.Context, in CommentInput) (out Created, err error) {
	err = in.call(ctx, http.MethodPost, fmt.Sprintf("/issues/%d/comments", in.Number), map[string]any{"body": in.Body}, &out)
	out.Number = in.Number
	return out, err
}

// PullInput is the input of github.pr.create.
type PullInput struct {
	Common
	Title string `json:"title"`
	Head  string `json:"head"`
	Base  string `json:"base"`
	Body  string `json:"body"`
	Draft bool   `json:"draft"`
}

// PullCreate opens a pull request.
func PullCreate(ctx context.Context, in PullInput) (out Created, err error) {
	err = in.call(ctx, http.MethodPost, "/pulls", map[string]any{"title": in.Title, "head": in.Head, "base": in.Base, "body": in.Body, "draft": in.Draft}, &out)
	return out, err
}

// NumberInput is the input of github.pr.get and github.pr.files.
type NumberInput struct {
	Common
	Number int `json:"number"`
}

// Pull is the output of github.pr.get.
type Pull struct {
	Number    int    `json:"number"`
	Title     string `json:"title"`
	Body      string `json:"body"`
	State     string `json:"state"`
	Merged    bool   `json:"merged"`
	Draft     bool   `json:"draft"`
	Head      string `json:"head"`
	Base      string `json:"base"`
	Additions int    `json:"additions"`
	Deletions int    `json:"deletions"`
	HTMLURL   string `json:"html_url"`
}

// PullGet returns a pull request.
func PullGet(ctx context.Context, in NumberInput) (Pull, error) {
	var doc struct {
		Pull
		Head struct{ Ref string } `json:"head"`
		Base struct{ Ref string } `json:"base"`
	}
	err := in.call(ctx, http.MethodGet, fmt.Sprintf("/pulls/%d", in.Number), nil, &doc)
	doc.Pull.Head, doc.Pull.Base = doc.Head.Ref, doc.Base.Ref
	return doc.Pull, err
}

// File is a changed file of a pull request.
type File struct {
	Filename  string `json:"filename"`
	Status    string `json:"status"`
	Additions int    `json:"additions"`
	Deletions int    `json:"deletions"`
	Patch     string `json:"patch"`
}

// FilesOutput is the output of github.pr.files.
type FilesOutput struct {
	Files []File `json:"files"`
	Count int    `json:"count"`
}

// PullFiles lists the changed files of a pull request, of which GitHub returns at most
// 3000.
func PullFiles(ctx context.Context, in NumberInput) (FilesOutput, error) {
	out := FilesOutput{Files: []File{}}
	for page := 1; page <= 30; page++ {
		var files []File
		if err := in.call(ctx, http.MethodGet, fmt.Sprintf("/pulls/%d/files?per_page=100&page=%d", in.Number, page), nil, &files); err != nil {
			return out, err
		}
		out.Files = append(out.Files, files...)
		if len(files) < 100 {
			break
		}
	}
	out.Count = len(out.Files)
	return out, nil
}

// ReleaseInput is the input of github.release.create.
type ReleaseInput struct {
	Common
	Tag   string `json:"tag"`
	Name  string `json:"name"`
	Body  string `json:"body"`
	Draft bool   `json:"draft"`
}

// ReleaseCreate creates a release.
func ReleaseCreate(ctx context.Context, in ReleaseInput) (out Created, err error) {
	err = in.call(ctx, http.MethodPost, "/releases", map[string]any{"tag_name": in.Tag, "name": in.Name, "body": in.Body, "draft": in.Draft}, &out)
	return out, err
}
