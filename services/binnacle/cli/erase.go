package cli

import (
	"net/http"

	"github.com/spf13/cobra"

	"github.com/binnacle-mesh/binnacle/pkg/contentkeys"
)

// erasedText describes what an erasure does.
const erasedText = `What was encrypted with the keys can no longer be read, on the ledger and in every copy of
it; every proof stays valid. Another person must approve the call. Content is encrypted if
the gateways run with --capture encrypted.`

// newEraseCmd returns the command erase, which erases the content about a data subject.
func newEraseCmd(c *env) *cobra.Command {
	var subject, reason string
	cmd := &cobra.Command{
		Use:               "erase --subject SUBJECT --reason WHY",
		Short:             "Erase the content about a data subject permanently",
		Long:              "Destroy all content keys of a data subject: of the calls that named it in the header\nX-Binnacle-Subject. The ledger has its pseudonym, not its name.\n\n" + erasedText,
		Example:           "  binnacle erase --subject customer-1017 --reason 'request of 2026-11-30'",
		Args:              takes(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if subject == "" {
				return fail(exitUsage, "erase requires --subject: the name that the calls gave in the header X-Binnacle-Subject")
			}
			return c.say(governedWith(cmd.Context(), c, http.Header{"X-Binnacle-Subject": {subject}}, contentkeys.KindEraseSubject, map[string]string{"reason": reason}))
		},
	}
	cmd.Flags().StringVar(&subject, "subject", "", "name of the data `SUBJECT`, as the calls gave it")
	complete(cmd, "subject", cobra.NoFileCompletions)
	reasonFlag(cmd, &reason)
	return cmd
}

// newTenantEraseCmd returns the command tenant erase.
func newTenantEraseCmd(c *env) *cobra.Command {
	var reason string
	cmd := governedCmd(c, &cobra.Command{
		Use:               "erase TENANT --reason WHY",
		Short:             "Erase the content of a tenant permanently",
		Long:              "Destroy all content keys of a tenant and of its data subjects. It needs a credential of\nthat tenant. New calls of the tenant get new keys.\n\n" + erasedText,
		Example:           "  binnacle tenant erase acme_shop_prod --reason 'contract ended'",
		Args:              takes(1, 1),
		ValidArgsFunction: byPosition(fromMesh(c, tenantNames)),
	}, contentkeys.KindEraseTenant, func(pos []string) any { return map[string]string{"tenant": pos[0], "reason": reason} })
	reasonFlag(cmd, &reason)
	return cmd
}
