package signature

import (
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// adyenBody is the part of a notification that its signature needs. The decoder refuses repeated names and
// distinguishes upper and lower case, exactly like the decoder that later reads the event: otherwise a body
// could show one value to the verifier and another value to that decoder.
type adyenBody struct {
	Items []struct {
		Item adyenItem `json:"NotificationRequestItem"`
	} `json:"notificationItems"`
}

type adyenItem struct {
	AdditionalData struct {
		Signature string `json:"hmacSignature"`
	} `json:"additionalData"`
	PSPReference        string `json:"pspReference"`
	OriginalReference   string `json:"originalReference"`
	MerchantAccountCode string `json:"merchantAccountCode"`
	MerchantReference   string `json:"merchantReference"`
	Amount              struct {
		Value    jsontext.Value `json:"value"`
		Currency string         `json:"currency"`
	} `json:"amount"`
	EventCode string `json:"eventCode"`
	Success   string `json:"success"`
}

// readAdyen parses the signature in the body of an Adyen notification. The signature covers eight fields,
// joined with colons. Only the merchant's reference may contain a colon, so that the signed text can be split
// in one way only.
func (v *Verifier) readAdyen(r Request) (unverified, error) {
	var body adyenBody
	if err := json.Unmarshal(r.Body, &body); err != nil { // the decoder's error quotes the body
		return unverified{}, fmt.Errorf("body: %w: it is no notification in JSON", ErrMalformed)
	}
	if len(body.Items) != 1 {
		return unverified{}, fmt.Errorf("body: %w: it has %d items, and the signature is that of one", ErrMalformed, len(body.Items))
	}
	item := &body.Items[0].Item
	text := item.AdditionalData.Signature
	if text == "" {
		return unverified{}, fmt.Errorf("field hmacSignature: %w", ErrMissing)
	}
	signature, err := v.decode("hmacSignature", text)
	if err != nil {
		return unverified{}, err
	}
	value := string(item.Amount.Value)
	if value != "" && !isDigits(strings.TrimPrefix(value, "-")) {
		return unverified{}, fmt.Errorf("field amount.value: %w: want minor units in digits", ErrMalformed)
	}
	fields := []string{
		item.PSPReference, item.OriginalReference, item.MerchantAccountCode, item.MerchantReference,
		value, item.Amount.Currency, item.EventCode, item.Success,
	}
	for i, field := range fields {
		if i != 3 && strings.Contains(field, ":") {
			return unverified{}, fmt.Errorf("body: %w: a field other than merchantReference has a colon", ErrMalformed)
		}
	}
	return unverified{content: []byte(strings.Join(fields, ":")), signatures: [][]byte{signature}}, nil
}
