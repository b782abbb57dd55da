package kubelet

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"

	admission "k8s.io/api/admission/v1"
	registration "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"multihost/internal/sim/kubeapi/gkenode"
)

const (
	webhookPath = "/gke-tpu-webhook"
	webhookName = "gke-tpu-webhook.multihost.test"

	maxReview = 8 << 20 // bytes of a request; the API server takes objects of 3 MiB
)

// register configures the API server to call the webhook for each pod of a Job.
func (k *Kubelet) register(ctx context.Context) error {
	url := "https://" + k.ln.Addr().String() + webhookPath
	none, fail := registration.SideEffectClassNone, registration.Fail
	o, err := encode(&registration.MutatingWebhookConfiguration{
		TypeMeta:   metav1.TypeMeta{APIVersion: "admissionregistration.k8s.io/v1", Kind: "MutatingWebhookConfiguration"},
		ObjectMeta: metav1.ObjectMeta{Name: webhookName},
		Webhooks: []registration.MutatingWebhook{{
			Name: webhookName, ClientConfig: registration.WebhookClientConfig{URL: &url, CABundle: k.cfg.CA},
			Rules: []registration.RuleWithOperations{{
				Operations: []registration.OperationType{registration.Create},
				Rule:       registration.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
			}},
			ObjectSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: batchv1.JobNameLabel, Operator: metav1.LabelSelectorOpExists}}},
			FailurePolicy:  &fail, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
		}},
	})
	if err != nil {
		return err
	}
	_, err = k.client.Resource(webhooksGVR).Apply(ctx, webhookName, o, metav1.ApplyOptions{FieldManager: manager, Force: true})
	return err
}

// serveWebhook adds GKE's variables to a new pod of a Job.
func (k *Kubelet) serveWebhook(w http.ResponseWriter, r *http.Request) {
	var review admission.AdmissionReview
	body, err := io.ReadAll(io.LimitReader(r.Body, maxReview))
	if err == nil {
		err = json.Unmarshal(body, &review)
	}
	if err != nil || review.Request == nil {
		http.Error(w, fmt.Sprintf("read review: %v", err), http.StatusBadRequest)
		return
	}
	answer := &admission.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	if patch, err := k.variables(r.Context(), review.Request); err != nil {
		answer.Allowed, answer.Result = false, &metav1.Status{Message: err.Error(), Code: http.StatusInternalServerError}
	} else if len(patch) > 0 {
		kind := admission.PatchTypeJSONPatch
		answer.Patch, answer.PatchType = patch, &kind
	}
	review.Request, review.Response = nil, answer
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review) // an error means that the client is gone
}

// variables returns a patch that adds GKE's variables to a pod. It returns nothing if the
// pod belongs to no Job or has no TPU chips.
func (k *Kubelet) variables(ctx context.Context, r *admission.AdmissionRequest) ([]byte, error) {
	var pod corev1.Pod
	if err := json.Unmarshal(r.Object.Raw, &pod); err != nil {
		return nil, err
	}
	of := metav1.GetControllerOf(&pod)
	if of == nil || of.Kind != "Job" {
		return nil, nil
	}
	o, err := k.client.Resource(jobsGVR).Namespace(r.Namespace).Get(ctx, of.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	var job batchv1.Job
	if err := decode(o, &job); err != nil {
		return nil, err
	}
	return patchOf(&pod, &job)
}

// An edit is one operation of a JSON patch.
type edit struct {
	Op    string          `json:"op"`
	Path  string          `json:"path"`
	Value []corev1.EnvVar `json:"value"`
}

// patchOf returns the patch for a pod of a Job.
func patchOf(pod *corev1.Pod, job *batchv1.Job) ([]byte, error) {
	index := -1
	if text, ok := pod.Annotations[batchv1.JobCompletionIndexAnnotation]; ok {
		var err error
		if index, err = strconv.Atoi(text); err != nil {
			return nil, err
		}
	}
	full := pod.DeepCopy()
	gkenode.AddVariables(full, job, index)
	var edits []edit
	for i, c := range full.Spec.Containers {
		if len(c.Env) > len(pod.Spec.Containers[i].Env) {
			edits = append(edits, edit{"add", fmt.Sprintf("/spec/containers/%d/env", i), c.Env})
		}
	}
	if len(edits) == 0 {
		return nil, nil
	}
	return json.Marshal(edits)
}
