package cli

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/core/contract"
	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
	"github.com/binnacle-mesh/binnacle/pkg/run"
	"github.com/binnacle-mesh/binnacle/services/session-runner/sessionrunner"
)

// packIndex is the document index.json of an index of archives.
type packIndex struct {
	Packs []sessionrunner.SignedArchive `json:"packs"` // sorted by name and version
}

// packIndexFile is the name of the document of an index, and maxIndex its maximum size.
const (
	packIndexFile = "index.json"
	maxIndex      = 4 << 20
)

func newPackKeyCmd(c *env) *cobra.Command {
	return &cobra.Command{
		Use:     "key FILE",
		Short:   "Write a new key that signs archives of packs, and print its public key",
		Example: "  binnacle pack key publisher.seed",
		Args:    takes(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			seed := make([]byte, 32)
			_, _ = rand.Read(seed) // never fails
			key, err := sign.NewKey(seed)
			if err != nil {
				return err
			}
			f, err := os.OpenFile(args[0], os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(f, hex.EncodeToString(seed))
			if err = errors.Join(err, f.Close()); err != nil {
				return err
			}
			public := hex.EncodeToString(key.Public())
			return c.print(map[string]string{"key": key.KID, "public": public}, func() { fmt.Fprintln(c.out, public) })
		},
	}
}

func newPackArchiveCmd(c *env) *cobra.Command {
	var a sessionrunner.SignedArchive
	var keyFile, index string
	var of packPlaces
	cmd := &cobra.Command{
		Use:     "archive FOLDER",
		Short:   "Check the packs in a folder, sign an archive of them, and add it to an index",
		Example: "  binnacle pack archive packs --name tides --key publisher.seed --index index",
		Args:    takes(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			if a.Name == "" || keyFile == "" || index == "" {
				return fail(exitUsage, "pack archive requires --name, --key and --index")
			}
			if err := a.Valid(); err != nil {
				return fail(exitUsage, "%v", err)
			}
			if _, problems := of.check(args[0]); len(problems) > 0 {
				return errors.Join(problems...)
			}
			if err := archivePacks(&a, args[0], keyFile, index); err != nil {
				return err
			}
			return c.print(a, func() { fmt.Fprintln(c.out, filepath.Join(index, a.Archive), a.Digest) })
		},
	}
	f := cmd.Flags()
	f.StringVar(&a.Name, "name", "", "`NAME` of the archive")
	f.StringVar(&a.Version, "version", "v1", "`VERSION` of the archive: v1, v2, …")
	f.StringVar(&keyFile, "key", "", "`FILE` that pack key wrote")
	f.StringVar(&index, "index", "", "`FOLDER` of the index")
	of.flags(f)
	return cmd
}

// archivePacks writes the archive of a folder into an index, in place of one with the same name
// and version, and sets the other members of a.
func archivePacks(a *sessionrunner.SignedArchive, folder, keyFile, index string) error {
	text, err := os.ReadFile(keyFile)
	if err != nil {
		return err
	}
	seed, err := run.ParseSeed(keyFile, strings.TrimSpace(string(text)))
	if err != nil {
		return err
	}
	key, err := sign.NewKey(seed)
	if err != nil {
		return err
	}
	archive, err := sessionrunner.ArchivePacks(folder)
	if err != nil {
		return err
	}
	a.Archive, a.Digest = a.Name+"-"+a.Version+".tar.gz", sign.Digest(archive)
	a.Sign(key)
	if err := os.MkdirAll(index, 0o755); err != nil {
		return err
	}
	var doc packIndex
	body, err := os.ReadFile(filepath.Join(index, packIndexFile))
	if err == nil {
		err = json.Unmarshal(body, &doc)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", filepath.Join(index, packIndexFile), err)
	}
	doc.Packs = slices.DeleteFunc(doc.Packs, func(o sessionrunner.SignedArchive) bool { return o.Name == a.Name && o.Version == a.Version })
	doc.Packs = append(doc.Packs, *a)
	slices.SortFunc(doc.Packs, func(x, y sessionrunner.SignedArchive) int {
		if n := strings.Compare(x.Name, y.Name); n != 0 {
			return n
		}
		return versionNumber(x.Version) - versionNumber(y.Version)
	})
	if body, err = json.MarshalIndent(doc, "", "  "); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(index, a.Archive), archive, 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(index, packIndexFile), append(body, '\n'), 0o644)
}

// versionNumber returns the number of a version, or 0 if it has another form.
func versionNumber(v string) int {
	n, _ := strconv.Atoi(strings.TrimPrefix(v, "v"))
	return n
}

func newPackInstallCmd(c *env) *cobra.Command {
	var index string
	cmd := &cobra.Command{
		Use:     "install NAME[@VERSION]",
		Short:   "Install a signed archive of packs on the mesh",
		Long:    "Install an archive of an index on every session-runner of the mesh: the newest version, or\nthe given one. Its digest and its signature by a key in session-runner.pack_keys are\nverified before anything is installed. A pack that changed has to be approved.",
		Example: "  binnacle pack install tides --index index\n  binnacle pack install tides@v2 --index https://packs.example.com",
		Args:    takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if index == "" {
				return fail(exitUsage, "pack install requires --index")
			}
			call, err := installCall(cmd.Context(), index, args[0])
			if err != nil {
				return err
			}
			c.operator = true
			return c.say(c.governed(cmd.Context(), "pack.install", call))
		},
	}
	cmd.Flags().StringVar(&index, "index", "", "`FOLDER` or URL of the index")
	return cmd
}

func newPackUninstallCmd(c *env) *cobra.Command {
	return &cobra.Command{
		Use:     "uninstall NAME",
		Short:   "Remove an archive of packs from the mesh",
		Example: "  binnacle pack uninstall tides",
		Args:    takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c.operator = true
			return c.say(c.governed(cmd.Context(), "pack.uninstall", map[string]string{"name": args[0]}))
		},
	}
}

// installCall returns the arguments of the call that installs an archive of an index. It
// returns an error if the archive does not have the digest that the index states; the mesh
// verifies it again, with the signature.
func installCall(ctx context.Context, index, what string) (map[string]any, error) {
	body, err := readIndexed(ctx, index, packIndexFile, maxIndex)
	if err != nil {
		return nil, err
	}
	var doc packIndex
	if err := json.Unmarshal(body, &doc); err != nil {
		return nil, fmt.Errorf("%s: %s: %w", index, packIndexFile, err)
	}
	name, version, pinned := strings.Cut(what, "@")
	var found *sessionrunner.SignedArchive
	for i := range doc.Packs {
		if a := &doc.Packs[i]; a.Name == name && (!pinned || a.Version == version) && (found == nil || versionNumber(a.Version) > versionNumber(found.Version)) {
			found = a
		}
	}
	switch {
	case found == nil:
		return nil, fail(exitFailed, "the index %s has no archive %s", index, what)
	case found.Archive != filepath.Base(found.Archive) || !filepath.IsLocal(found.Archive):
		return nil, fail(exitFailed, "the index %s names the archive %q, which is no file name", index, found.Archive)
	}
	archive, err := readIndexed(ctx, index, found.Archive, sessionrunner.MaxArchive)
	if err != nil {
		return nil, err
	}
	if got := sign.Digest(archive); got != found.Digest {
		return nil, fail(exitFailed, "%s has the digest %s, and the index %s states %s: nothing was installed", found.Archive, got, index, found.Digest)
	}
	return map[string]any{"archive": base64.StdEncoding.EncodeToString(archive), "digest": found.Digest, "key": found.Key, "name": found.Name, "signature": found.Signature, "version": found.Version}, nil
}

// readIndexed reads a file of an index, which is a folder or the URL of one. A file of more
// than most bytes is an error.
func readIndexed(ctx context.Context, index, name string, most int64) ([]byte, error) {
	var from io.ReadCloser
	if strings.HasPrefix(index, "http://") || strings.HasPrefix(index, "https://") {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(index, "/")+"/"+name, nil)
		if err != nil {
			return nil, err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return nil, err
		}
		if resp.StatusCode != http.StatusOK {
			_ = resp.Body.Close()
			return nil, fail(exitFailed, "%s: %s", req.URL, resp.Status)
		}
		from = resp.Body
	} else {
		f, err := os.Open(filepath.Join(index, name))
		if err != nil {
			return nil, err
		}
		from = f
	}
	defer from.Close()
	b, err := io.ReadAll(io.LimitReader(from, most+1))
	if err == nil && int64(len(b)) > most {
		err = fail(exitFailed, "%s of the index %s has more than %d bytes", name, index, most)
	}
	return b, err
}

func newPackApproveCmd(c *env) *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use:               "approve NAME…",
		Short:             "Approve packs that have changed",
		Long:              "Approve the current documents of packs that have changed since they were registered or\napproved. With --follow, approve each further change at once, until interrupted.",
		Example:           "  binnacle pack approve cmd.upper\n  binnacle pack approve --follow cmd.upper cmd.count",
		Args:              takes(1, 100),
		ValidArgsFunction: completeTools(c),
		RunE: func(cmd *cobra.Command, names []string) error {
			for {
				for _, name := range names {
					if err := approveChanged(cmd.Context(), c, name); err != nil && !(follow && cmd.Context().Err() == nil) {
						return err
					} else if err != nil {
						fmt.Fprintln(c.errOut, err)
					}
				}
				if !follow {
					return nil
				}
				select {
				case <-cmd.Context().Done():
					return nil
				case <-time.After(approveEvery):
				}
			}
		},
	}
	cmd.Flags().BoolVar(&follow, "follow", false, "approve further changes, too")
	return cmd
}

// approveEvery is the interval at which pack approve --follow looks for changes.
const approveEvery = time.Second

// approveChanged approves the current document of a pack, unless it is approved already.
func approveChanged(ctx context.Context, c *env, name string) error {
	var p, approved tool
	if err := c.get(ctx, "/api/v1/packs/"+url.PathEscape(name)+"?unapproved=true", &p); err != nil {
		return suggestNames(ctx, c, err, func(code, _ string) bool { return code == contract.CodeNotFound }, name, toolNames)
	}
	if err := c.get(ctx, "/api/v1/packs/"+url.PathEscape(name), &approved); err == nil && approved.Digest == p.Digest {
		return nil
	}
	return c.say(c.governed(ctx, "policy.approve_tool", map[string]string{"kind": "tool." + name, "digest": p.Digest}))
}
