package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/output"
)

// newArtifactCmd returns the command artifact, whose subcommands store, read, link, hold and
// delete artifacts.
func newArtifactCmd(c *env) *cobra.Command {
	return group(&cobra.Command{
		Use:   "artifact COMMAND",
		Short: "Store, read, link, hold and delete artifacts",
		Long: `Store and read artifacts: files of any size, named by the digest of their content. Each
change is a governed call with a receipt.`,
		Example: "  binnacle artifact put report.pdf\n  binnacle artifact list\n  binnacle artifact get ar-… --out report.pdf",
	}, newArtifactPutCmd(c), newArtifactGetCmd(c), newArtifactListCmd(c),
		newArtifactVerbCmd(c, "info ARTIFACT", "Describe an artifact", "artifact.info", nil),
		newArtifactLinkCmd(c), newArtifactHoldCmd(c), newArtifactReleaseCmd(c),
		newArtifactVerbCmd(c, "delete ARTIFACT", "Delete your uploads of an artifact", "artifact.delete", nil))
}

// artifactInfo is an artifact, as the mesh describes it.
type artifactInfo struct {
	Artifact  string `json:"artifact"`
	CallID    string `json:"call_id"`
	Cited     bool   `json:"cited"`
	Expires   string `json:"expires"`
	Held      bool   `json:"held"`
	MediaType string `json:"media_type"`
	Name      string `json:"name"`
	Owner     string `json:"owner"`
	Size      int64  `json:"size"`
	Stored    string `json:"stored"`
	Upload    string `json:"upload"`
}

// kept returns why the content of an artifact is not removed: "held", "cited", both
// joined by a comma, or "" if nothing prevents its removal.
func (a *artifactInfo) kept() string {
	var why []string
	if a.Held {
		why = append(why, "held")
	}
	if a.Cited {
		why = append(why, "cited")
	}
	return strings.Join(why, ",")
}

func newArtifactPutCmd(c *env) *cobra.Command {
	var name, media, in string
	var labels []string
	var retain time.Duration
	cmd := &cobra.Command{
		Use:     "put FILE|-",
		Short:   "Store a file, or standard input, as an artifact and print its id",
		Example: "  binnacle artifact put report.pdf --type application/pdf --retain 720h",
		Args:    takes(1, 1),
		RunE: func(cmd *cobra.Command, pos []string) error {
			from, size := c.in, int64(-1)
			if pos[0] != "-" {
				f, err := os.Open(pos[0])
				if err != nil {
					return err
				}
				defer f.Close()
				info, err := f.Stat()
				if err != nil {
					return err
				}
				from, size = f, info.Size()
				if name == "" {
					name = filepath.Base(pos[0])
				}
			}
			q := url.Values{"retain_s": {strconv.FormatInt(int64(retain.Seconds()), 10)}}
			if name != "" {
				q.Set("name", name)
			}
			if labels != nil {
				q.Set("labels", strings.Join(labels, ","))
			}
			h := session(in)
			if h == nil {
				h = http.Header{}
			}
			h.Set("Content-Type", media)
			resp, err := c.stream(cmd.Context(), http.MethodPost, "/api/v1/artifacts?"+q.Encode(), from, size, h)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			raw, err := io.ReadAll(resp.Body)
			if err != nil {
				return err
			}
			var doc struct {
				Output artifactInfo `json:"output"`
			}
			if err := json.Unmarshal(raw, &doc); err != nil {
				return fmt.Errorf("the mesh's response cannot be read: %w", err)
			}
			return c.print(json.RawMessage(raw), func() { fmt.Fprintln(c.out, doc.Output.Artifact) })
		},
	}
	f := cmd.Flags()
	f.StringVar(&name, "name", "", "file `NAME` of the artifact (default that of the file)")
	f.StringSliceVar(&labels, "label", nil, "`NAME=VALUE`, several joined by commas")
	f.StringVar(&media, "type", "application/octet-stream", "media `TYPE`")
	f.StringVar(&in, "session", "", "`NAME` of the session (s-…) of the call")
	f.DurationVar(&retain, "retain", 0, "time after which it may be removed; 0 means no end")
	return cmd
}

func newArtifactGetCmd(c *env) *cobra.Command {
	var out, part string
	cmd := &cobra.Command{
		Use:     "get ARTIFACT",
		Short:   "Write the content of an artifact to a file or standard output",
		Long:    "Write the content of an artifact to a file or standard output. The content is compared\nwith the digest in the id, unless --range selects a part of it.",
		Example: "  binnacle artifact get ar-… --out report.pdf\n  binnacle artifact get ar-… --range 0-99",
		Args:    takes(1, 1),
		RunE: func(cmd *cobra.Command, pos []string) error {
			return save(c, out, func(w io.Writer) (int64, error) { return getArtifact(cmd.Context(), c, w, pos[0], part) })
		},
	}
	cmd.Flags().StringVar(&out, "out", "", "`FILE` to write (default standard output)")
	cmd.Flags().StringVar(&part, "range", "", "`FIRST-LAST` byte to write, from 0")
	return cmd
}

// getArtifact writes the content of an artifact, or a part of it, to w and returns the
// number of bytes. It compares the digest of a whole content with the artifact's id
// and returns an error if they differ; w has received the content then.
func getArtifact(ctx context.Context, c *env, w io.Writer, id, part string) (int64, error) {
	h := http.Header{}
	if part != "" {
		h.Set("Range", "bytes="+part)
	}
	resp, err := c.request(ctx, http.MethodGet, "/api/v1/artifacts/"+url.PathEscape(id)+"/content", nil, h)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(w, sum), resp.Body)
	if err != nil {
		return n, err
	}
	if part == "" && strings.TrimPrefix(id, contract.IDArtifact) != hex.EncodeToString(sum.Sum(nil)) {
		return n, fail(exitFailed, "the content that the mesh returned does not match the digest in %s", id)
	}
	return n, nil
}

func newArtifactListCmd(c *env) *cobra.Command {
	var all bool
	var label string
	var limit int
	cmd := &cobra.Command{
		Use:               "list",
		Short:             "List your artifacts, newest first",
		Example:           "  binnacle artifact list --limit 20",
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var list []artifactInfo
			if err := c.get(cmd.Context(), fmt.Sprintf("/api/v1/artifacts?all=%t&limit=%d&label=%s", all, limit, url.QueryEscape(label)), &list); err != nil {
				return err
			}
			return c.table(list, []output.Column{{Heading: "ARTIFACT", Min: 67}, {Heading: "BYTES", Min: 12}, {Heading: "NAME", Min: 20}, {Heading: "OWNER", Min: 12}, {Heading: "STORED", Min: 24}, {Heading: "KEPT"}}, func(g *output.Grid) {
				for _, a := range list {
					g.Add(a.Artifact, strconv.FormatInt(a.Size, 10), a.Name, a.Owner, a.Stored, a.kept())
				}
			})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "the artifacts of all principals; needs audit:read")
	cmd.Flags().StringVar(&label, "label", "", "`NAME=VALUE`: only artifacts with this label")
	cmd.Flags().IntVar(&limit, "limit", 100, "greatest `NUMBER` of artifacts")
	return cmd
}

// newArtifactVerbCmd returns a command that makes one call for an artifact and prints its
// output. args returns further arguments; it may be nil.
func newArtifactVerbCmd(c *env, use, short, tool string, args func() map[string]any) *cobra.Command {
	return &cobra.Command{
		Use:               use,
		Short:             short,
		Example:           "  binnacle " + strings.Replace(tool, ".", " ", 1) + " ar-…",
		Args:              takes(1, 1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, pos []string) error {
			all := map[string]any{}
			if args != nil {
				all = args()
			}
			all["artifact"] = pos[0]
			var out json.RawMessage
			raw, err := sandboxCall(cmd.Context(), c, "", tool, all, &out)
			if err != nil {
				return err
			}
			return c.print(raw, func() { fmt.Fprintln(c.out, indent(raw)) })
		},
	}
}

func newArtifactHoldCmd(c *env) *cobra.Command {
	var reason string
	cmd := newArtifactVerbCmd(c, "hold ARTIFACT", "Put an artifact on hold: it is not removed before its release", "artifact.hold", func() map[string]any { return map[string]any{"reason": reason} })
	cmd.Flags().StringVar(&reason, "reason", "", "`WHY` it is on hold")
	return cmd
}

func newArtifactReleaseCmd(c *env) *cobra.Command {
	var holder string
	cmd := newArtifactVerbCmd(c, "release ARTIFACT", "End a hold of an artifact", "artifact.release", func() map[string]any {
		if holder == "" {
			return map[string]any{}
		}
		return map[string]any{"holder": holder}
	})
	cmd.Flags().StringVar(&holder, "holder", "", "`WHO` put it on hold (default the caller); another one's needs policy:admin")
	return cmd
}

func newArtifactLinkCmd(c *env) *cobra.Command {
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:               "link ARTIFACT",
		Short:             "Print a signed link to an artifact, which needs no token until it expires",
		Example:           "  binnacle artifact link ar-… --ttl 1h",
		Args:              takes(1, 1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, pos []string) error {
			var l struct {
				Path    string `json:"path"`
				Expires string `json:"expires"`
			}
			raw, err := c.post(cmd.Context(), "/api/v1/artifacts/"+url.PathEscape(pos[0])+"/link", map[string]any{"ttl_s": int64(ttl.Seconds())}, nil, &l)
			if err != nil {
				return err
			}
			return c.print(json.RawMessage(raw), func() {
				fmt.Fprintln(c.out, c.base()+l.Path)
				fmt.Fprintln(c.errOut, "until", l.Expires)
			})
		},
	}
	cmd.Flags().DurationVar(&ttl, "ttl", 15*time.Minute, "time for which the link is valid, at most 168h")
	return cmd
}
