#!/usr/bin/env bash
# Prepares a Google Cloud project for deploy/gcp.yaml, once, with your login and the gcloud command:
#
#   deploy/gcp-project.sh PROJECT [REGION]      # and again when your address has changed
#
# It makes a network that allows SSH from your present address, and other traffic between the cluster's machines only; and a service
# account that lets the head start and stop machines, and nothing else. Workers have none. The default network allows SSH from
# everywhere.
set -euo pipefail
project=${1:?deploy/gcp-project.sh PROJECT [REGION]} region=${2:-us-west1}
name=rlhf-ray
account=$name-head@$project.iam.gserviceaccount.com
cloud() { gcloud --quiet --project "$project" "$@"; }

me=$(curl -fsS https://checkip.amazonaws.com)/32
if ! cloud compute networks describe "$name" >/dev/null 2>&1; then
  cloud compute networks create "$name" --subnet-mode custom
  cloud compute networks subnets create "$name" --network "$name" --region "$region" --range 10.80.0.0/20
  cloud compute firewall-rules create "$name-inside" --network "$name" --allow all --source-tags "$name" --target-tags "$name"
  cloud compute firewall-rules create "$name-ssh" --network "$name" --allow tcp:22 --source-ranges "$me" --target-tags "$name"
fi
cloud compute firewall-rules update "$name-ssh" --source-ranges "$me"

permissions=compute.disks.create,compute.images.useReadOnly,compute.instances.create,compute.instances.delete
permissions+=,compute.instances.get,compute.instances.list,compute.instances.setLabels,compute.instances.setMetadata
permissions+=,compute.instances.setTags,compute.instances.start,compute.instances.stop,compute.projects.get
permissions+=,compute.subnetworks.use,compute.subnetworks.useExternalIp,compute.zoneOperations.get
if ! cloud iam service-accounts describe "$account" >/dev/null 2>&1; then
  cloud iam service-accounts create "$name-head"
  cloud iam roles create rlhf_ray_head --permissions "$permissions"
fi
cloud projects add-iam-policy-binding "$project" --member "serviceAccount:$account" \
  --role "projects/$project/roles/rlhf_ray_head" --condition None >/dev/null

echo "SSH from $me. Put your project into deploy/gcp.yaml, wherever it says your-project."
